/**
 * The way from the command to the terminal: whatever is written to stdout and stderr, by whom and of whatever, loses its control characters
 * here. Tabs and newlines stay, and colours where this terminal has any. With `--json`, stdout gets JSON escapes in their place: the same JSON.
 * What moves the cursor is ours alone, and goes by `unfiltered`. Does not reach programs that write to an inherited descriptor.
 */
import { StringDecoder } from 'node:string_decoder';
import { styleText } from 'node:util';
import { CONTROL } from '../../core/describe.ts';

type Write = (text: string, written?: unknown) => boolean;

const unfilteredOf = new WeakMap<NodeJS.WriteStream, Write>();

/** `colour`: leaves colours as they are. */
export function filtered(text: string, colour: boolean): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  const pieces = text.replaceAll('\r\n', '\n').split(/(\u001b\[[\d;]*m)/);
  return pieces.map((piece, i) => (i % 2 === 0 ? piece.replace(CONTROL, '·') : colour ? piece : '')).join('');
}

function escaped(json: string): string {
  return json.replace(CONTROL, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** From now on, for as long as the process lives. */
export function filterOutput(json: boolean): void {
  const colour = styleText('bold', 'x') !== 'x';
  for (const stream of [process.stdout, process.stderr]) {
    const original = stream.write as Write;
    const decoder = new StringDecoder('utf8');
    const clean = (text: string): string => (json && stream === process.stdout ? escaped(text) : filtered(text, colour));
    const write = (chunk: string | Uint8Array, encoding?: unknown, written?: unknown): boolean => {
      const text = typeof chunk === 'string' ? chunk : decoder.write(chunk);
      return original.call(stream, clean(text), typeof encoding === 'function' ? encoding : written);
    };
    unfilteredOf.set(stream, original);
    stream.write = write as typeof stream.write;
  }
}

/** Writes past the filter: only for text that holds nothing of others but what was cleaned before. */
export function unfiltered(stream: NodeJS.WriteStream): (text: string) => void {
  const write = unfilteredOf.get(stream) ?? stream.write;
  return (text) => void write.call(stream, text);
}
