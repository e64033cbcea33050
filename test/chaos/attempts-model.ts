/**
 * At-least-once execution with fencing, as a model that any queue of rollouts can be checked against: each rollout is given to one worker at a
 * time, with the number of its attempt; a worker that is lost keeps what it was given until the lease expires, then another one gets it with the
 * next number, and what the lost one says later is refused. A rollout has at most one result, and in the end exactly one.
 *
 * In which order rollouts are given out is the queue's business.
 */
import fc from 'fast-check';
import { expect } from 'vitest';

export interface Job {
  readonly rollout: string;
  /** From 1. */
  readonly attempt: number;
}

export interface Kept extends Job {
  readonly worker: string;
}

/** The system under test, with its rollouts already in it. */
export interface AttemptQueue extends AsyncDisposable {
  /** Undefined if nothing is waiting. */
  fetch(worker: string): Promise<Job | undefined>;
  /** Whether the result was taken; false if a later attempt has begun or has ended. */
  finish(worker: string, job: Job): Promise<boolean>;
  /** The worker is not heard of any more: killed or stopped. Stopped, it may wake up and finish what it thinks is its own. */
  lose(worker: string): Promise<void>;
  /** Lets the leases of lost workers run out; those of the others are renewed. */
  expire(): Promise<void>;
  results(): Promise<readonly Kept[]>;
}

interface Rollout {
  attempts: number;
  holder: string | undefined;
  result: Kept | undefined;
}

interface Model {
  readonly rollouts: Map<string, Rollout>;
  readonly lost: Set<string>;
  /** What each worker thinks is its own, in order; also the lost ones. */
  readonly held: Kept[];
  readonly seen: Set<string>;
}

type Step = fc.AsyncCommand<Model, AttemptQueue>;

const step = (label: string, run: Step['run'], check: (model: Readonly<Model>) => boolean = () => true): Step => ({
  check,
  run,
  toString: () => label,
});

async function fetchAs(worker: string, model: Model, queue: AttemptQueue): Promise<Kept | undefined> {
  const job = await queue.fetch(worker);
  if (job === undefined) {
    const waiting = [...model.rollouts].filter(([, { holder, result }]) => holder === undefined && result === undefined);
    expect(waiting, `${worker} was given nothing, and there are rollouts waiting`).toEqual([]);
    return undefined;
  }
  const rollout = model.rollouts.get(job.rollout);
  expect(rollout, `${job.rollout} is of nobody`).toBeDefined();
  expect(rollout!.result, `${job.rollout} was given out after its result`).toBeUndefined();
  expect(rollout!.holder, `${job.rollout} was given out while a worker had it`).toBeUndefined();
  expect(job.attempt, `the attempt of ${job.rollout}`).toBe(rollout!.attempts + 1);
  [rollout!.attempts, rollout!.holder] = [job.attempt, worker];
  const kept = { ...job, worker };
  model.held.push(kept);
  return kept;
}

async function finish(kept: Kept, model: Model, queue: AttemptQueue): Promise<void> {
  const { worker, rollout: name, attempt } = kept;
  const rollout = model.rollouts.get(name)!;
  const taken = await queue.finish(worker, { rollout: name, attempt });
  const isCurrent = rollout.attempts === attempt && rollout.holder === worker;
  const isRepeated = rollout.result?.attempt === attempt;
  model.seen.add(isRepeated ? 'repeated' : isCurrent ? 'taken' : 'late');
  // Said again by the same attempt, either answer will do: there is one result.
  if (!isRepeated) expect(taken, `${worker} finishes attempt ${attempt} of ${name}`).toBe(isCurrent);
  if (isCurrent && !isRepeated) [rollout.result, rollout.holder] = [kept, undefined];
}

async function expire(model: Model, queue: AttemptQueue): Promise<void> {
  await queue.expire();
  for (const rollout of model.rollouts.values()) {
    if (rollout.holder === undefined || !model.lost.has(rollout.holder)) continue;
    rollout.holder = undefined;
    model.seen.add('expired');
  }
}

async function checkResults(model: Model, queue: AttemptQueue): Promise<void> {
  const wanted = [...model.rollouts.values()].flatMap(({ result }) => (result === undefined ? [] : [result]));
  const byName = (a: Kept, b: Kept): number => a.rollout.localeCompare(b.rollout);
  expect((await queue.results()).toSorted(byName)).toEqual(wanted.toSorted(byName));
}

const WORKERS = ['w1', 'w2', 'w3'];
const workers = fc.constantFrom(...WORKERS);

const commands = fc.commands<Model, AttemptQueue, false>(
  [
    workers.map((worker) =>
      step(
        `fetch ${worker}`,
        async (model, queue) => void (await fetchAs(worker, model, queue)),
        ({ lost }) => !lost.has(worker),
      ),
    ),
    fc.nat(20).map((n) =>
      step(
        `finish ${n}`,
        (model, queue) => finish(model.held[n % model.held.length]!, model, queue),
        ({ held }) => held.length > 0,
      ),
    ),
    workers.map((worker) =>
      step(
        `lose ${worker}`,
        async (model, queue) => {
          await queue.lose(worker);
          model.lost.add(worker);
        },
        ({ lost }) => !lost.has(worker),
      ),
    ),
    fc.constant(step('expire', expire)),
    fc.constant(step('results', checkResults)),
  ],
  { maxCommands: 40, size: 'max' },
);

/** Everything that is left is done by a worker that nothing happens to. */
async function drain(model: Model, queue: AttemptQueue): Promise<void> {
  for (const worker of WORKERS) {
    await queue.lose(worker);
    model.lost.add(worker);
  }
  await expire(model, queue);
  for (let kept = await fetchAs('last', model, queue); kept !== undefined; kept = await fetchAs('last', model, queue)) {
    await finish(kept, model, queue);
  }
  for (const late of model.held) await finish(late, model, queue);
  await checkResults(model, queue);
  expect(
    [...model.rollouts.values()].every(({ result }) => result !== undefined),
    'every rollout has its result',
  ).toBe(true);
}

/** Makes many queues, each with these rollouts in it, and runs a sequence on each. Returns what happened at least once. */
export async function checkAttempts(
  queueWith: (rollouts: readonly string[]) => Promise<AttemptQueue>,
  numRuns: number,
): Promise<ReadonlySet<string>> {
  const seen = new Set<string>();
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 5 }), commands, async (count, sequence) => {
      const names = Array.from({ length: count }, (_, i) => `r${i}`);
      await using queue = await queueWith(names);
      const fresh = (): Rollout => ({ attempts: 0, holder: undefined, result: undefined });
      const model: Model = { rollouts: new Map(names.map((name) => [name, fresh()])), lost: new Set(), held: [], seen };
      await fc.asyncModelRun(() => ({ model, real: queue }), sequence);
      await drain(model, queue);
    }),
    { numRuns },
  );
  return seen;
}
