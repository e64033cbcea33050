/**
 * What others write while the view is up: an agent's `console.log`, a warning of Node. It is handed over line by line instead of
 * landing in the middle of the view. What a child process writes to an inherited descriptor cannot be caught here.
 */
import { StringDecoder } from 'node:string_decoder';

export interface Outside extends Disposable {
  /** The stream's own way to write. */
  readonly write: (text: string) => void;
}

/** Until disposed, `take` gets each whole line with its newline, and at the end what was left without one. */
export function catchWrites(stream: NodeJS.WriteStream, take: (text: string) => void): Outside {
  const original = stream.write;
  const decoder = new StringDecoder('utf8');
  let begun = '';
  const write = (chunk: string | Uint8Array, encoding?: unknown, written?: unknown): boolean => {
    begun += typeof chunk === 'string' ? chunk : decoder.write(chunk);
    const end = begun.lastIndexOf('\n') + 1;
    const whole = begun.slice(0, end);
    begun = begun.slice(end);
    if (whole !== '') take(whole);
    const callback = typeof encoding === 'function' ? encoding : written;
    if (typeof callback === 'function') process.nextTick(() => callback());
    return true;
  };
  stream.write = write as typeof stream.write;
  return {
    write: (text) => void original.call(stream, text),
    [Symbol.dispose]: () => {
      stream.write = original;
      if (begun !== '') take(begun);
    },
  };
}
