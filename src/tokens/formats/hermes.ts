/**
 * Calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of them, with text before,
 * between and after. A call's arguments are the source text of that JSON value, whatever kind of value it is.
 */
import { type CallFormat, markedReader } from './format.ts';
import { callOf, skipSpace, ValueScan } from './json-source.ts';

const OPEN = '<tool_call>';
const CLOSE = '</tool_call>';

export const hermes: CallFormat = {
  name: 'hermes',
  toArguments: /^"\s*,\s*"arguments"\s*:/,
  reader: () =>
    markedReader(OPEN, () => {
      const scan = new ValueScan();
      let start = OPEN.length;
      let close = 0;
      return (text) => {
        start = skipSpace(text, start);
        if (start === text.length) return undefined;
        if (text[start] !== '{') return 'no-call';
        const end = scan.endOf(text, start);
        if (end === undefined || end === 'no-value') return end && 'no-call';
        close = skipSpace(text, Math.max(close, end));
        if (!text.startsWith(CLOSE, close)) return CLOSE.startsWith(text.slice(close)) ? undefined : 'no-call';
        const call = callOf(text.slice(start, end), 'arguments');
        return call ? { calls: [call], length: close + CLOSE.length } : 'no-call';
      };
    }),
};
