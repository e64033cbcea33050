/**
 * The seeds of one session. A seed depends on the prompt and how often it was asked, never on timing or retries: the n-th call of a prompt
 * has its own seed, and a call that fails returns its number.
 */
import { hash } from 'node:crypto';
import type { SessionSpec } from '../core/contracts.ts';
import type { Turn } from '../core/types.ts';

export interface Draw {
  readonly seed: number;
  /** Call if nothing was recorded, so that the next attempt gets the same seed. */
  giveBack(): void;
}

export class Seeds {
  readonly #session: string;
  readonly #taken = new Map<string, Set<number>>();

  constructor({ seed, identity }: Pick<SessionSpec, 'seed' | 'identity'>) {
    this.#session = `${seed}\n${identity.rolloutId}`;
  }

  /** `asked`: the prompt ids, or a default model's request as JSON. */
  draw({ role, thread }: Pick<Turn, 'role' | 'thread'>, asked: Int32Array | string): Draw {
    const bytes = typeof asked === 'string' ? Buffer.from(asked) : Buffer.from(asked.buffer, asked.byteOffset, asked.byteLength);
    const who = thread === role ? role : `${role}\n${thread}`;
    const prompt = hash('sha256', Buffer.concat([Buffer.from(`${this.#session}\n${who}\n`), bytes]), 'base64');
    const taken = this.#taken.get(prompt) ?? new Set();
    this.#taken.set(prompt, taken);
    let number = 0;
    while (taken.has(number)) number++;
    taken.add(number);
    const giveBack = (): void => {
      taken.delete(number);
      if (taken.size === 0) this.#taken.delete(prompt);
    };
    return { seed: hash('sha256', `${prompt}\n${number}`, 'buffer').readUIntBE(0, 6), giveBack };
  }
}
