import { setImmediate as settled } from 'node:timers/promises';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { TrainyardError } from '../core/errors.ts';
import type { Turn } from '../core/types.ts';
import { type Answer, Answers, isMarkedRetry } from './answers.ts';

const turnOf = (index: number) => ({ index }) as Turn;

/** Samples turns 0, 1, 2 … at once. */
function sampler() {
  const counter = { sampled: 0, sample: async () => turnOf(counter.sampled++) };
  return counter;
}

const cancelled = () => Promise.reject(new Error('hung up'));

/** Attempts one after the other: what each is given, `x` where its client hangs up; `miss` with the attempt that did not get its answer. */
async function play(steps: string): Promise<void> {
  const answers = new Answers<Turn>();
  const { sample } = sampler();
  const given: Answer<Turn>[] = [];
  for (const [step, what, told] of steps.split(' ').map((one) => [one, ...one.split(':')] as const)) {
    if (what === 'miss') given[Number(told)]!.miss();
    else if (told === 'x') await expect(answers.get('k', what === 'retry', cancelled), step).rejects.toThrow('hung up');
    else {
      given.push(await answers.get('k', what === 'retry', sample));
      expect(given.at(-1)!.value.index, `${step} of ${steps}`).toBe(Number(told));
    }
  }
}

describe('attempts of identical requests', () => {
  it.each([
    ['a retry of a second request that was cancelled samples; the next retry gets that', 'ask:0 ask:x retry:1 retry:1'],
    ['a retry gets the answer that was missed, and so does the retry after it', 'ask:0 ask:1 miss:0 retry:0 retry:0'],
    ['a retry after a request that was given up and asked anew gets the new answer', 'ask:x ask:0 retry:0'],
    ['a retry that overtook its first attempt is answered again after that was cancelled', 'retry:0 ask:x retry:0 ask:x retry:1'],
    ['an answer missed by one attempt but had by another leaves nothing behind', 'ask:0 retry:0 miss:0 miss:0 ask:1'],
    ['an answer missed by every attempt is given again, once', 'ask:0 retry:0 miss:0 miss:1 ask:0 ask:1'],
  ])('%s', async (_, steps) => await play(steps));

  it('an attempt is a retry by its SDK’s count, or by an idempotency key', () => {
    const by = (headers: Record<string, string>) => isMarkedRetry((name) => headers[name]);
    for (const name of ['x-stainless-retry-count', 'x-retry-count', 'idempotency-key']) expect(by({ [name]: '1' })).toBe(true);
    expect([by({}), by({ 'x-stainless-retry-count': '0' })]).toEqual([false, false]);
  });
});

interface Attempt {
  readonly question: number;
  /** Set while this attempt samples. */
  sampling?: PromiseWithResolvers<Turn> | undefined;
  /** What the gateway replied. */
  given?: Answer<Turn>;
  /** The client no longer listens. */
  left: boolean;
  /** The gateway knows that. */
  noticed: boolean;
}

/** A client that asks one question after the other, all in the same words, and a gateway that learns of its hang-ups late. */
class Client {
  readonly questionOf = new Map<Turn, number>();
  readonly delivered = new Map<number, Turn>();
  question = -1;
  readonly attempts: Attempt[] = [];
  readonly #answers: Answers<Turn>;
  readonly #key: string;

  constructor(answers: Answers<Turn>, key: string) {
    this.#answers = answers;
    this.#key = key;
  }

  get isAnswered(): boolean {
    return this.question < 0 || this.delivered.has(this.question);
  }

  /** A new question; or, once all hang-ups were noticed, the one that is not answered again, without a mark. */
  ask(): void {
    if (this.isAnswered) this.question++;
    else if (this.#current.some(({ noticed }) => !noticed)) return;
    this.#attempt(false);
  }

  retry(): void {
    if (this.isAnswered) return;
    for (const attempt of this.#current) attempt.left = true;
    this.#attempt(true);
  }

  #attempt(isRetry: boolean): void {
    const attempt: Attempt = { question: this.question, left: false, noticed: false };
    this.attempts.push(attempt);
    const sample = async () => {
      if (attempt.noticed) return cancelled();
      attempt.sampling = Promise.withResolvers();
      return attempt.sampling.promise;
    };
    this.#answers.get(this.#key, isRetry, sample).then(
      (answer) => {
        attempt.given = answer;
        if (attempt.noticed) answer.miss();
      },
      () => {
        attempt.left = attempt.noticed = true;
      },
    );
  }

  leave(which: number): void {
    const attempt = this.#pick(which, (attempt) => this.#listensTo(attempt));
    if (attempt) attempt.left = true;
  }

  notice(which: number): void {
    const attempt = this.#pick(which, ({ left, noticed }) => left && !noticed);
    if (!attempt) return;
    attempt.noticed = true;
    if (attempt.given) attempt.given.miss();
    else attempt.sampling?.reject(new Error('hung up'));
    attempt.sampling = undefined;
  }

  finish(which: number): void {
    const attempt = this.#pick(which, ({ sampling }) => sampling !== undefined);
    if (!attempt) return;
    const turn = turnOf(this.questionOf.size);
    this.questionOf.set(turn, attempt.question);
    attempt.sampling?.resolve(turn);
    attempt.sampling = undefined;
  }

  fail(which: number): void {
    const attempt = this.#pick(which, ({ sampling }) => sampling !== undefined);
    attempt?.sampling?.reject(new Error('the engine failed'));
    if (attempt) attempt.sampling = undefined;
  }

  deliver(which: number): void {
    const attempt = this.#pick(which, (attempt) => attempt.given !== undefined && this.#listensTo(attempt));
    if (attempt?.given) this.delivered.set(attempt.question, attempt.given.value);
  }

  get #current(): readonly Attempt[] {
    return this.attempts.filter(({ question }) => question === this.question);
  }

  #listensTo({ question, left }: Attempt): boolean {
    return question === this.question && !left && !this.isAnswered;
  }

  /** One of the attempts to which it can happen now. */
  #pick(which: number, canBe: (attempt: Attempt) => boolean): Attempt | undefined {
    const able = this.attempts.filter(canBe);
    return able[which % able.length];
  }
}

const event = fc.record({
  who: fc.nat(1),
  what: fc.constantFrom('ask', 'retry', 'leave', 'notice', 'finish', 'fail', 'deliver'),
  which: fc.nat(9),
});

it('whatever the order of asking, hanging up, noticing, failing and retrying, each question has one turn at most, each delivered answer is its question’s own, and each question can be answered', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(event, { maxLength: 80, size: 'max' }), async (events) => {
      const answers = new Answers<Turn>();
      const clients = [new Client(answers, 'a'), new Client(answers, 'b')];
      for (const { who, what, which } of events) {
        clients[who]![what](which);
        await settled();
      }
      for (const client of clients) {
        client.retry();
        await settled();
        client.finish(0);
        await settled();
        client.deliver(0);
        expect(client.isAnswered).toBe(true);
        const questions = [...client.questionOf.values()];
        expect(new Set(questions).size).toBe(questions.length);
        for (const [question, turn] of client.delivered) expect(client.questionOf.get(turn)).toBe(question);
      }
    }),
    { numRuns: 1000 },
  );
});

describe('a question that was refused', () => {
  const refused = () => Promise.reject(new TrainyardError('LIMIT_REACHED', 'no more'));

  it('is forgotten', async () => {
    const answers = new Answers<Turn>();
    for (const key of ['a', 'b', 'c']) await expect(answers.get(key, false, refused)).rejects.toThrow('no more');
    expect(answers.size).toBe(0);
  });

  it('is remembered as long as a retry of it waits, or one attempt was answered', async () => {
    const answers = new Answers<Turn>();
    const { sample } = sampler();
    const first = Promise.withResolvers<Turn>();
    const asked = answers.get('k', false, () => first.promise);
    const retry = answers.get('k', true, sample);
    first.reject(new TrainyardError('LIMIT_REACHED', 'no more'));
    await expect(asked).rejects.toThrow('no more');
    expect((await retry).value.index).toBe(0);
    await expect(answers.get('k', false, refused)).rejects.toThrow('no more');
    expect((await answers.get('k', true, sample)).value.index).toBe(0);
  });
});
