/**
 * `AsyncRewardWrapper`: runs an expensive reward function in separate processes, so that rollouts do not block each other. Wrappers of the
 * same function and process count share processes, which start at the first call and end when the last workflow is torn down or the last
 * wrapper disposed. A call that hangs is killed and its process replaced. Timeouts, crashes and exceptions are retried, then thrown: a
 * timeout never becomes a reward unless `onTimeout: 0` asks for it.
 */
import { availableParallelism } from 'node:os';
import { currentRollout } from '../../core/context.ts';
import { describeValue, unknownOptions } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { defined } from '../../core/json.ts';
import { type FunctionAnswer, type FunctionPool, openFunctionPool } from '../../processes/function-pool.ts';
import { SharedPools } from '../../processes/process-pool.ts';
import { closeWithWorkflows, type EpisodeData, type RewardData, withAnswer } from './episode.ts';

export interface RewardReference {
  readonly module: string | URL;
  readonly exportName: string;
}

export interface AsyncRewardOptions {
  /** Limit for one attempt. Default 15. */
  readonly timeoutSeconds?: number;
  /** Number of processes. Default: half the cores. */
  readonly maxWorkers?: number;
  /** Attempts after the first one. Default 3. */
  readonly maxRetries?: number;
  /** If the last attempt timed out: throw, which fails the rollout (the default), reject the rollout (null), or return 0. */
  readonly onTimeout?: 'throw' | null | 0;
}

type RewardFunction = (...args: never[]) => number | Promise<number>;

/** In an episode, the wrapper adds the answer to the episode's data. */
type Given<Args extends readonly unknown[]> = {
  [I in keyof Args]: Args[I] extends RewardData<infer Metadata> ? EpisodeData<Metadata> : Args[I];
};

/** Throws USAGE once disposed. */
export interface AsyncReward<F extends RewardFunction = RewardFunction> extends AsyncDisposable {
  (...args: Given<Parameters<F>>): Promise<number>;
}

/** Use: `new AsyncRewardWrapper<typeof reward>({ module: import.meta.url, exportName: 'reward' })`. */
export const AsyncRewardWrapper = wrapped as unknown as new <F extends RewardFunction = RewardFunction>(
  reference: RewardReference,
  options?: AsyncRewardOptions,
) => AsyncReward<F>;

const pools = new SharedPools<FunctionPool>();

closeWithWorkflows(() => pools.closeAll());

function wrapped(reference: RewardReference, options: AsyncRewardOptions = {}): AsyncReward {
  const { module, exportName } = checkedReference(reference);
  const { timeoutSeconds, maxWorkers, maxRetries, onTimeout } = checkedOptions(options);
  const key = JSON.stringify([module, exportName, maxWorkers]);
  const user = {};
  let disposed = false;
  const compute = async (...args: readonly unknown[]): Promise<number> => {
    if (disposed) throw new TrainyardError('USAGE', `the wrapper of ${exportName} was called after it was disposed of`);
    const open = (signal: AbortSignal) =>
      openFunctionPool({ module, exportName, workers: maxWorkers, deadlineMs: 60_000, signal });
    const pool = await pools.use(key, user, open);
    const limits = { deadlineMs: timeoutSeconds * 1000, signal: currentRollout()?.signal };
    const given = withAnswer(args);
    const answer = await attempts(() => pool.call(given, limits), maxRetries + 1);
    if (answer.kind === 'answered') return rewardOf(answer.value, exportName);
    if (answer.why === 'timeout' && onTimeout === 0) return 0;
    if (answer.why === 'timeout' && onTimeout === null) currentRollout()?.reject('reward_timeout');
    throw failure(answer, maxRetries + 1);
  };
  const dispose = async () => {
    disposed = true;
    await pools.leave(key, user);
  };
  return Object.assign(compute, { [Symbol.asyncDispose]: dispose });
}

type Failure = FunctionAnswer & { readonly kind: 'failed' };
const MAY_PASS: readonly Failure['why'][] = ['threw', 'timeout', 'crashed'];

async function attempts(call: () => Promise<FunctionAnswer>, most: number): Promise<FunctionAnswer> {
  for (let attempt = 1; ; attempt++) {
    const answer = await call();
    if (answer.kind === 'answered' || !MAY_PASS.includes(answer.why) || attempt >= most) return answer;
  }
}

function rewardOf(value: unknown, name: string): number {
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw new TrainyardError('GRADER_BAD_REWARD', `${name} returned ${describeValue(value)}, expected a finite number`);
}

function failure({ why, message, code }: Failure, tried: number): TrainyardError {
  const own = why === 'timeout' ? 'GRADER_TIMEOUT' : why === 'cancelled' ? 'CANCELLED' : 'GRADER_FAILED';
  const times = MAY_PASS.includes(why) ? ` (attempt ${tried} of ${tried})` : '';
  return new TrainyardError(code ?? own, `${message}${times}`);
}

function checkedReference(given: unknown) {
  if (typeof given === 'function') {
    const name = given.name || 'reward';
    const found = `the function ${given.name || 'without a name'} itself, which cannot be sent to another process`;
    throw new TrainyardError(
      'USAGE',
      `AsyncRewardWrapper was given ${found}`,
      `export it, and write new AsyncRewardWrapper<typeof ${name}>({ module: import.meta.url, exportName: '${name}' })`,
    );
  }
  const { module, exportName } = (given ?? {}) as Partial<RewardReference>;
  if (module && exportName) return { module: String(module), exportName };
  throw new TrainyardError(
    'USAGE',
    `AsyncRewardWrapper was given ${describeValue(given)}, expected { module, exportName }`,
    "write { module: import.meta.url, exportName: 'reward' }",
  );
}

const CHECKS: Readonly<Record<keyof AsyncRewardOptions, readonly [expected: string, isRight: (value: never) => boolean]>> = {
  timeoutSeconds: ['a number above 0', (value: number) => value > 0 && value < 1e6],
  maxWorkers: ['a whole number from 1 up', (value: number) => Number.isSafeInteger(value) && value >= 1],
  maxRetries: ['a whole number from 0 up', (value: number) => Number.isSafeInteger(value) && value >= 0],
  onTimeout: ['"throw", null or 0', (value: unknown) => [0, null, 'throw'].includes(value as 0)],
};

function checkedOptions(given: AsyncRewardOptions): Required<AsyncRewardOptions> {
  const maxWorkers = Math.max(1, Math.floor(availableParallelism() / 2));
  const defaults = { timeoutSeconds: 15, maxWorkers, maxRetries: 3, onTimeout: 'throw' } as const;
  const options: Required<AsyncRewardOptions> = { ...defaults, ...defined(given) };
  const names = Object.keys(CHECKS) as (keyof AsyncRewardOptions)[];
  const wrong = names.filter((name) => !CHECKS[name][1](options[name] as never));
  const mistakes = [
    ...unknownOptions(given, names, 'AsyncRewardWrapper'),
    ...wrong.map((name) => `${name}: expected ${CHECKS[name][0]}, found ${describeValue(options[name])}`),
  ];
  if (mistakes.length > 0) throw new TrainyardError('USAGE', mistakes.join('; also: '));
  return options;
}
