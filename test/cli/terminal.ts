/**
 * A terminal small enough to be obviously right: text, newline, carriage return, cursor up, erase to the end of line or screen,
 * cursor shown or hidden, colours ignored. What leaves at the top is kept. Anything else it is sent is a fault.
 */
import { cellsOf } from '../../src/cli/output/text.ts';

// biome-ignore lint/suspicious/noControlCharactersInRegex: terminal sequences begin with one
const SEQUENCE = /^\u001b\[(\?25[hl]|\d*A|[JK]|[\d;]*m)/;

export class Terminal {
  readonly columns: number;
  readonly rows: number;
  cursorShown = true;
  readonly #scrolled: string[] = [];
  #lines: string[] = [''];
  #row = 0;
  #column = 0;
  #unread = '';

  constructor(columns: number, rows: number) {
    this.columns = columns;
    this.rows = rows;
  }

  /** Everything that was ever on a line and still is, scrollback first. */
  get text(): readonly string[] {
    return [...this.#scrolled, ...this.#lines].map((line) => line.trimEnd());
  }

  /** `\n` alone moves down only; a terminal's driver sends `\r\n` for it. */
  write(text: string): void {
    let rest = this.#unread + text;
    this.#unread = '';
    while (rest !== '') {
      if (rest.startsWith('\u001b')) {
        const found = SEQUENCE.exec(rest);
        if (found === null) {
          if (rest.length > 16)
            throw new Error(`a sequence that this terminal does not know: ${JSON.stringify(rest.slice(0, 16))}`);
          this.#unread = rest;
          return;
        }
        this.#obey(found[1] ?? '');
        rest = rest.slice(found[0].length);
      } else {
        const character = String.fromCodePoint(rest.codePointAt(0) ?? 0);
        this.#put(character);
        rest = rest.slice(character.length);
      }
    }
  }

  #obey(command: string): void {
    if (command.startsWith('?25')) this.cursorShown = command.endsWith('h');
    if (command.endsWith('A')) this.#row = Math.max(0, this.#row - Number(command.slice(0, -1) || 1));
    if (command === 'K' || command === 'J') this.#lines[this.#row] = this.#line().slice(0, this.#column);
    if (command === 'J') this.#lines = this.#lines.slice(0, this.#row + 1);
  }

  #put(character: string): void {
    if (character === '\r') this.#column = 0;
    else if (character === '\n') this.#down();
    else if (character < ' ')
      throw new Error(`a control character that this terminal does not know: ${JSON.stringify(character)}`);
    else {
      if (this.#column + cellsOf(character) > this.columns) {
        this.#column = 0;
        this.#down();
      }
      const line = this.#line().padEnd(this.#column);
      this.#lines[this.#row] = line.slice(0, this.#column) + character + line.slice(this.#column + 1);
      this.#column += cellsOf(character);
    }
  }

  #line(): string {
    return this.#lines[this.#row] ?? '';
  }

  #down(): void {
    this.#row++;
    if (this.#row === this.#lines.length) this.#lines.push('');
    if (this.#lines.length <= this.rows) return;
    this.#scrolled.push(this.#lines.shift() ?? '');
    this.#row--;
  }
}
