/**
 * Graders inside of graders: what all ways to put graders together have in common.
 *
 * One rule for what is absent: a component that cannot score makes the whole fail, and one that rejects makes the whole rejected. There is
 * never a sum of only some of the parts, because that would be a reward nobody meant. A failure wins over a rejection.
 */
import { abortWith } from '../../core/async.ts';
import type { Grader, GraderContext, GraderInput, Ungraded } from '../../core/contracts.ts';
import { TrainyardError } from '../../core/errors.ts';
import { toReward } from '../../core/reward.ts';
import type { Reward } from '../../core/types.ts';
import { DEFAULT_DEADLINE_MS } from '../../grader/attempts.ts';
import { ungradedOf } from '../../grader/call.ts';

/** A whole is a success from 1 up, give or take the rounding of a sum. */
const ROUNDING = 1e-9;

export type Components = readonly (readonly [name: string, grader: Grader])[];

/** Throws GRADER_INVALID where it is none. `where` begins the message. */
export function checkGrader(given: unknown, where: string): asserts given is Grader {
  if (typeof given === 'object' && given !== null && 'grade' in given && typeof given.grade === 'function') return;
  if (typeof given === 'function') {
    const hint = 'call what makes a grader, such as exactMatch(); wrap what grades in defineGrader(…)';
    throw invalid(`${where}: expected a grader, found ${given.name ? `the function ${given.name}` : 'a function'}`, hint);
  }
  throw invalid(`${where}: expected a grader, found ${given === null ? 'null' : typeof given}`, 'make one with defineGrader(…)');
}

/** Throws GRADER_INVALID where it is not finite. */
export function checkFinite(value: unknown, where: string): asserts value is number {
  if (typeof value === 'number' && Number.isFinite(value)) return;
  throw invalid(`${where}: expected a finite number, found ${String(value)}`);
}

/** Parts are stored as `name.part`: a dot in a name would make two parts one. */
export function checkNames(names: readonly string[], where: string): void {
  if (names.length === 0) throw invalid(`${where}: expected at least one grader by name, found none`);
  const odd = names.find((name) => name === '' || name.includes('.') || name === '__proto__');
  if (odd !== undefined) throw invalid(`${where}: a part is named ${JSON.stringify(odd)}, expected a name without dots`);
}

export function invalid(message: string, hint?: string): TrainyardError {
  return new TrainyardError('GRADER_INVALID', message, hint === undefined ? {} : { hint });
}

/**
 * What the whole inherits: the strictest concurrency, the most retries, time enough for all of them, all variables. `asked`: whether their deadlines pass one
 * after the other. Where only some have a deadline the others get the usual one.
 */
export function inherited(
  graders: readonly Grader[],
  asked: 'together' | 'in turn',
): Pick<Grader, 'concurrency' | 'deadlineMs' | 'retries' | 'asksPolicy' | 'judges' | 'needsEnv'> {
  const given = (name: 'concurrency' | 'deadlineMs' | 'retries'): number[] => graders.flatMap((grader) => grader[name] ?? []);
  const [concurrency, retries] = [given('concurrency'), given('retries')];
  const deadlines = graders.map(({ deadlineMs = DEFAULT_DEADLINE_MS }) => deadlineMs);
  const needsEnv = [...new Set(graders.flatMap((grader) => grader.needsEnv ?? []))];
  const deadlineMs = asked === 'together' ? Math.max(...deadlines) : deadlines.reduce((sum, one) => sum + one, 0);
  return {
    ...(concurrency.length === 0 ? {} : { concurrency: Math.min(...concurrency) }),
    ...(given('deadlineMs').length === 0 ? {} : { deadlineMs }),
    ...(retries.length === 0 ? {} : { retries: Math.max(...retries) }),
    ...(graders.some((grader) => grader.asksPolicy) ? { asksPolicy: true } : {}),
    ...(graders.some((grader) => grader.judges) ? { judges: true } : {}),
    ...(needsEnv.length === 0 ? {} : { needsEnv }),
  };
}

/** What one component makes of a rollout. Throws what it throws, and GRADER_BAD_REWARD. */
export async function rewardOf(name: string, grader: Grader, input: GraderInput, ctx: GraderContext): Promise<Reward | Ungraded> {
  const result: unknown = await grader.grade(input, ctx);
  const nothing = ungradedOf(result);
  if (nothing !== undefined) return { kind: 'ungraded', why: `${name}: ${nothing.why}` };
  return toReward(result, `the grader ${JSON.stringify(name)}`, input.turns.length);
}

/** All of them, asked at the same time. When one fails the others are told to stop, and the whole throws what that one threw. */
export async function rewardsOf(
  components: Components,
  input: GraderInput,
  ctx: GraderContext,
): Promise<readonly Reward[] | Ungraded> {
  const controller = new AbortController();
  const unlink = abortWith(controller, ctx.signal);
  const failures: unknown[] = [];
  const one = async ([name, grader]: Components[number]): Promise<Reward | Ungraded | undefined> => {
    try {
      return await rewardOf(name, grader, input, { ...ctx, signal: controller.signal });
    } catch (thrown) {
      failures.push(thrown);
      controller.abort(thrown);
      return undefined;
    }
  };
  try {
    const results = await Promise.all(components.map(one));
    if (failures.length > 0) throw failures[0];
    const given = results.filter((result) => result !== undefined);
    return given.find((result) => isUngraded(result)) ?? given.filter((result): result is Reward => !isUngraded(result));
  } finally {
    unlink();
  }
}

export function isUngraded<T extends object>(result: T | Ungraded): result is Ungraded {
  return 'kind' in result && result.kind === 'ungraded';
}

export function isSuccess({ success, value }: Pick<Reward, 'success' | 'value'>): boolean {
  return success ?? value >= 1 - ROUNDING;
}

/** Each component's value under its name, and what it is made of under `name.part`; its metrics likewise. */
export function partsOf(named: readonly (readonly [string, Reward])[]): Required<Pick<Reward, 'parts' | 'metrics'>> {
  const below = (name: string, inner: Reward['parts'] = {}): [string, number][] =>
    Object.entries(inner).map(([part, value]) => [`${name}.${part}`, value]);
  return {
    parts: Object.fromEntries(named.flatMap(([name, { value, parts }]) => [[name, value] as const, ...below(name, parts)])),
    metrics: Object.fromEntries(named.flatMap(([name, { metrics }]) => below(name, metrics))),
  };
}

/** Threads of which nothing is trained, whichever component said so. */
export function untrainedOf(rewards: readonly Reward[]): Pick<Reward, 'untrained'> {
  const untrained = [...new Set(rewards.flatMap((reward) => reward.untrained ?? []))];
  return untrained.length === 0 ? {} : { untrained };
}
