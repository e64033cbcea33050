/**
 * Calls as Mistral writes them: `[TOOL_CALLS]` and one JSON list of `{"name": …, "arguments": …, "id": …}`. The ids in it are the
 * policy's own words and name nothing. A list with one element that is no call is text as a whole.
 */
import { type CallFormat, markedReader } from './format.ts';
import { callOf, elementSources, parseOr, skipSpace, ValueScan } from './json-source.ts';

const OPEN = '[TOOL_CALLS]';

export const mistral: CallFormat = {
  name: 'mistral',
  toArguments: /^"\s*,\s*"arguments"\s*:/,
  reader: () =>
    markedReader(OPEN, () => {
      const scan = new ValueScan();
      let start = OPEN.length;
      return (text) => {
        start = skipSpace(text, start);
        if (start === text.length) return undefined;
        if (text[start] !== '[') return 'no-call';
        const length = scan.endOf(text, start);
        if (length === undefined || length === 'no-value') return length && 'no-call';
        const source = text.slice(start, length);
        if (!Array.isArray(parseOr(source))) return 'no-call';
        const calls = elementSources(source).map((element) => callOf(element, 'arguments'));
        const wellFormed = calls.filter((call) => call !== undefined);
        return calls.length > 0 && wellFormed.length === calls.length ? { calls: wellFormed, length } : 'no-call';
      };
    }),
};
