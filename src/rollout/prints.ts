/**
 * What workflows print, with `console` or on stdout and stderr, kept line by line with the rollout in whose context it was printed, however
 * many run at once. Bounded; a last line says what was dropped. What is printed outside of rollouts passes unchanged, as does what programs
 * that a workflow starts print, and what is written to a descriptor directly.
 */
import { currentRollout } from '../core/context.ts';
import type { WorkflowContext } from '../core/contracts.ts';

/** Per rollout: lines, and characters of them together. */
const MOST_LINES = 1_000;
const MOST_CHARACTERS = 100_000;
/** With the line that says what was dropped. */
export const MOST_PRINTED = { lines: MOST_LINES + 1, characters: MOST_CHARACTERS + 100 } as const;

class Prints {
  readonly #keep: (line: string) => void;
  /** The last line, which may go on. */
  #begun = '';
  #lines = 0;
  #characters = 0;
  #dropped = 0;
  #isOver = false;

  constructor(keep: (line: string) => void) {
    this.#keep = keep;
  }

  write(text: string): void {
    const lines = (this.#begun + text).split('\n');
    const last = lines.at(-1)!.length > MOST_CHARACTERS ? '' : lines.pop()!;
    for (const line of lines) this.#line(line);
    this.#begun = last;
  }

  end(): void {
    if (this.#begun !== '') this.#line(this.#begun);
    if (this.#dropped > 0 && !this.#isOver) this.#keep(`… and ${this.#dropped} more characters, which were not kept`);
    this.#begun = '';
    this.#isOver = true;
  }

  #line(line: string): void {
    const room = this.#lines < MOST_LINES ? MOST_CHARACTERS - this.#characters : 0;
    // All that follows a gap is dropped too: half a story would mislead.
    if (this.#dropped === 0 && room > 0 && !this.#isOver) this.#keep(line.slice(0, room));
    this.#dropped += room > 0 ? Math.max(0, line.length - room) : line.length + 1;
    this.#lines++;
    this.#characters += line.length;
  }
}

const ofRollouts = new WeakMap<WorkflowContext, Prints>();

/** `keep` gets each line that is printed in this context, without its newline, until `endPrints`. */
export const keepPrintsOf = (ctx: WorkflowContext, keep: (line: string) => void): void =>
  void ofRollouts.set(ctx, new Prints(keep));

/** Keeps a last line without a newline. What is printed later is dropped. */
export const endPrints = (ctx: WorkflowContext): void => ofRollouts.get(ctx)?.end();

/** Keeps what rollouts print from the streams of this process until disposed. `passes`: it is written as well. */
export function catchPrints(passes = false): Disposable {
  let isOver = false;
  const caught = [process.stdout, process.stderr].map((stream) => {
    const original = stream.write as (...given: readonly unknown[]) => boolean;
    const write = (chunk: string | Uint8Array, encoding?: unknown, written?: unknown): boolean => {
      const rollout = isOver ? undefined : currentRollout();
      const prints = rollout && ofRollouts.get(rollout);
      prints?.write(typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString());
      if (prints === undefined || passes) return original.call(stream, chunk, encoding, written);
      const callback = typeof encoding === 'function' ? encoding : written;
      if (typeof callback === 'function') process.nextTick(() => callback());
      return true;
    };
    stream.write = write as typeof stream.write;
    return { stream, write, original };
  });
  return {
    [Symbol.dispose]: () => {
      isOver = true;
      // Whoever replaced it meanwhile goes on calling it.
      for (const { stream, write, original } of caught)
        if (stream.write === write) stream.write = original as typeof stream.write;
    },
  };
}
