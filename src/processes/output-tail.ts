/**
 * The end of what a process printed, to be shown when it fails. Keeps a bounded number of characters, however much is printed.
 */
import { printable } from '../core/describe.ts';

const CHARS = 8_192;
const LINES = 12;

/** V8 ends a crash report with its own stack; the reason stands above it. */
const NATIVE_FRAME = /^\s*\d+: 0x[0-9a-f]+/;

export class OutputTail {
  readonly #most: number;
  #text = '';

  constructor(most = CHARS) {
    this.#most = most;
  }

  /** As it was printed. */
  get text(): string {
    return this.#text;
  }

  add(chunk: string): void {
    this.#text = (this.#text + chunk).slice(-this.#most);
  }

  clear(): void {
    this.#text = '';
  }

  lastLines(): string {
    const lines = printable(this.#text)
      .split('\n')
      .filter((line) => line.trim() !== '' && !NATIVE_FRAME.test(line));
    return lines.slice(-LINES).join('\n');
  }
}
