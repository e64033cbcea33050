/**
 * Calls as Llama 3.1 writes them: the response begins with `{"name": …, "parameters": …}`, or with `<|python_tag|>` and then that;
 * several follow each other with `;` or white space between. What comes after them is text. JSON after any other text is text: nothing
 * marks it as a call.
 */
import type { CallFormat, Step } from './format.ts';
import { callOf, skipSpace, ValueScan } from './json-source.ts';

const PYTHON_TAG = '<|python_tag|>';

export const llama: CallFormat = {
  name: 'llama',
  toArguments: /^"\s*,\s*"parameters"\s*:/,
  reader() {
    let scan = new ValueScan();
    let space = 0;
    const decided = (step: Step): Step => {
      scan = new ValueScan();
      space = 0;
      return step;
    };
    return (text, last, place) => {
      const plain: Step = { kind: 'text', length: text.length };
      if (place === 'within text') return plain;
      space = skipSpace(text, space, place === 'start' ? '' : ';');
      const start = place === 'start' ? afterTag(text, space) : space;
      if (start === undefined || start === text.length) return last ? decided(plain) : undefined;
      if (text[start] !== '{') return decided(plain);
      const end = scan.endOf(text, start);
      if (end === undefined && !last) return undefined;
      if (typeof end !== 'number') return decided(plain);
      const call = callOf(text.slice(start, end), 'parameters');
      return decided(call ? { kind: 'calls', calls: [call], length: end } : plain);
    };
  },
};

/** Behind the tag and the space after it, if it stands at `at`; undefined if it may be about to. */
function afterTag(text: string, at: number): number | undefined {
  if (text.startsWith(PYTHON_TAG, at)) return skipSpace(text, at + PYTHON_TAG.length);
  return at < text.length && PYTHON_TAG.startsWith(text.slice(at)) ? undefined : at;
}
