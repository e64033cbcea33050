/**
 * `AsyncRewardWrapper`: a reward function that costs a lot, called in processes of its own, so that no rollout waits for another's.
 *
 * The function is an export of a module, because a closure cannot be sent to another process. Wrappers of the same function and number
 * of processes share them; they are started by the first call and end with the last workflow of the process, or with the last wrapper
 * that is disposed of. A call that hangs is killed and its process replaced.
 *
 * A call that timed out, crashed or threw is tried again; what fails every time is thrown. A timeout is never a reward, unless it is asked
 * for by `onTimeout: 0`.
 */
import { availableParallelism } from 'node:os';
import { currentRollout } from '../core/context.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { unknownOptions } from '../core/near-name.ts';
import { type FunctionAnswer, type FunctionPool, openFunctionPool } from '../processes/function-pool.ts';
import { SharedPools } from '../processes/process-pool.ts';
import { closeWithWorkflows } from './shared.ts';

export interface RewardReference {
  /** `import.meta.url` of the module that exports the function. */
  readonly module: string | URL;
  readonly exportName: string;
}

export interface AsyncRewardOptions {
  /** Of one attempt. Default 15. */
  readonly timeoutSeconds?: number;
  /** Processes. Default: half as many as there are cores. */
  readonly maxWorkers?: number;
  /** Attempts after the first. Default 3. */
  readonly maxRetries?: number;
  /** When every attempt failed and the last one timed out: throw, which fails the rollout (the default), reject it (null), or give 0. */
  readonly onTimeout?: 'throw' | null | 0;
}

type RewardFunction = (...args: never[]) => number | Promise<number>;

/** The wrapped function. Disposed of, it can no longer be called. */
export interface AsyncReward<F extends RewardFunction = RewardFunction> extends AsyncDisposable {
  (...args: Parameters<F>): Promise<number>;
}

/** `new AsyncRewardWrapper<typeof reward>({ module: import.meta.url, exportName: 'reward' })` is called like `reward` itself. */
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
    const ofRollout = currentRollout()?.signal;
    const call = () =>
      pool.call(args, { deadlineMs: timeoutSeconds * 1000, ...(ofRollout === undefined ? {} : { signal: ofRollout }) });
    const answer = await attempts(call, maxRetries + 1);
    if (answer.kind === 'answered') return rewardOf(answer.value, exportName);
    if (answer.why !== 'timeout' || onTimeout === 'throw') throw failure(answer, maxRetries + 1);
    return onTimeout ?? rejected(answer, maxRetries + 1);
  };
  const dispose = async (): Promise<void> => {
    disposed = true;
    await pools.leave(key, user);
  };
  return Object.assign(compute, { [Symbol.asyncDispose]: dispose });
}

/** Another attempt may do better after a timeout, a crash or a throw, and after nothing else. */
async function attempts(call: () => Promise<FunctionAnswer>, most: number): Promise<FunctionAnswer> {
  for (let attempt = 1; ; attempt++) {
    const answer = await call();
    const mayPass = answer.kind === 'failed' && ['threw', 'timeout', 'crashed'].includes(answer.why);
    if (!mayPass || attempt >= most) return answer;
  }
}

function rewardOf(value: unknown, name: string): number {
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  throw new TrainyardError('GRADER_BAD_REWARD', `${name} returned ${describeValue(value)}, expected a finite number`);
}

type Failed = FunctionAnswer & { readonly kind: 'failed' };

function failure({ why, message, code }: Failed, tried: number): TrainyardError {
  const own = why === 'timeout' ? 'GRADER_TIMEOUT' : why === 'cancelled' ? 'CANCELLED' : 'GRADER_FAILED';
  const times = ['threw', 'timeout', 'crashed'].includes(why) ? ` (attempt ${tried} of ${tried})` : '';
  return new TrainyardError(code ?? own, `${message}${times}`);
}

function rejected(answer: Failed, tried: number): never {
  const ctx = currentRollout();
  if (ctx === undefined) throw failure(answer, tried);
  return ctx.reject('reward_timeout');
}

function checkedReference(given: unknown): { readonly module: string; readonly exportName: string } {
  if (typeof given === 'function') {
    const name = given.name || 'reward';
    throw new TrainyardError(
      'USAGE',
      `AsyncRewardWrapper was given the function ${given.name || 'without a name'} itself, which cannot be sent to another process`,
      {
        hint: `export it, and write new AsyncRewardWrapper<typeof ${name}>({ module: import.meta.url, exportName: '${name}' })`,
      },
    );
  }
  const { module, exportName } = (given ?? {}) as Partial<RewardReference>;
  const url = module instanceof URL ? module.href : module;
  if (typeof url === 'string' && url !== '' && typeof exportName === 'string' && exportName !== '')
    return { module: url, exportName };
  throw new TrainyardError('USAGE', `AsyncRewardWrapper was given ${describeValue(given)}, expected { module, exportName }`, {
    hint: "write { module: import.meta.url, exportName: 'reward' }",
  });
}

function checkedOptions(given: AsyncRewardOptions): Required<AsyncRewardOptions> {
  const {
    timeoutSeconds = 15,
    maxWorkers = Math.max(1, Math.floor(availableParallelism() / 2)),
    maxRetries = 3,
    onTimeout = 'throw',
  } = given;
  const mistakes = [
    unknownOptions(given, ['timeoutSeconds', 'maxWorkers', 'maxRetries', 'onTimeout'], 'AsyncRewardWrapper'),
    timeoutSeconds > 0 && timeoutSeconds < 1e6
      ? []
      : `timeoutSeconds: expected a number above 0, found ${describeValue(timeoutSeconds)}`,
    Number.isSafeInteger(maxWorkers) && maxWorkers >= 1
      ? []
      : `maxWorkers: expected a whole number from 1 up, found ${describeValue(maxWorkers)}`,
    Number.isSafeInteger(maxRetries) && maxRetries >= 0
      ? []
      : `maxRetries: expected a whole number from 0 up, found ${describeValue(maxRetries)}`,
    [0, null, 'throw'].includes(onTimeout) ? [] : `onTimeout: expected "throw", null or 0, found ${describeValue(onTimeout)}`,
  ].flat(2);
  if (mistakes.length > 0) throw new TrainyardError('USAGE', mistakes.join('; also: '));
  return { timeoutSeconds, maxWorkers, maxRetries, onTimeout };
}
