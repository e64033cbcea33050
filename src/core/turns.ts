/** How turns and rollouts are named, summarised, weighted by age and excluded from training. Reads no store. */
import type { Warn } from './events.ts';
import { defined } from './json.ts';
import type {
  Exclusion,
  ForkCause,
  Mark,
  Message,
  RolloutIdentity,
  RolloutSummary,
  StaleRule,
  Trajectory,
  Turn,
} from './types.ts';

/** As the engine sampled them, or as the model behind an API counted them. */
export function tokensOf({ usage, promptIds, sampledIds }: Pick<Turn, 'usage' | 'promptIds' | 'sampledIds'>) {
  return { promptTokens: usage?.promptTokens ?? promptIds.length, sampledTokens: usage?.completionTokens ?? sampledIds.length };
}

export function turnSummary(turn: Turn) {
  const { index, thread, role, after, fork, stopReason, policyVersion, trainable, request, formatError, response } = turn;
  return {
    index,
    thread,
    role,
    after: after ?? null,
    fork: fork ?? null,
    ...tokensOf(turn),
    stopReason,
    policyVersion,
    trainable,
    model: turn.model ?? null,
    usage: turn.usage ?? null,
    seconds: Math.max(0, turn.endedAt - turn.startedAt) / 1000,
    undelivered: turn.undelivered ?? false,
    dialect: request.dialect ?? null,
    ignored: request.ignored ?? [],
    formatError: formatError ?? null,
    response,
  };
}

export type TurnSummary = ReturnType<typeof turnSummary>;

const MOST_TOLD = 200;

/**
 * Tells, each name once, what agents ask for in vain where it changes what they can do: tools that the policy is never shown, and calls one
 * at a time. Other parameters without effect change no more than words or speed, and are only kept in the turns.
 */
export function tellingIgnored(warn: Warn): (rollout: { rolloutId: string; turns: readonly Pick<Turn, 'request'>[] }) => void {
  const told = new Set<string>();
  return ({ rolloutId, turns }) => {
    const ignored = turns
      .flatMap(({ request }) => request.ignored ?? [])
      .map((name) => name.replace(/^tools(\[\d+\])?:/, 'the tool '));
    const asked = ignored.filter((name) => /^(the tool |parallel_tool_calls:false|tool_choice\.)/.test(name));
    const news = [...new Set(asked)].filter((name) => !told.has(name)).slice(0, MOST_TOLD - told.size);
    for (const name of news) told.add(name);
    const what = 'the policy is not shown, or not held to, what its agent asks for';
    if (news.length > 0) warn('WITHOUT_EFFECT', `${what}: ${news.join(', ')} (rollout ${rolloutId})`);
  };
}

/** The grader's `success`, else a reward of at least 1. In a game, the rewards of the trained roles count instead of `value`. */
export function isSuccess({ grade, turns }: Pick<Summarised, 'grade'> & { readonly turns: readonly Played[] }): boolean {
  if (grade.kind !== 'graded') return false;
  const { success, value, byRole = {} } = grade.reward;
  const earned = turns.flatMap(({ role, trainable }) => (trainable && Object.hasOwn(byRole, role) ? [byRole[role]!] : []));
  return success ?? (earned.length > 0 ? earned : [value]).every((reward) => reward >= 1);
}

type Played = Pick<Turn, 'role' | 'trainable'>;

/** What a summary needs of a trajectory: a store reads no more. */
export interface Summarised
  extends Pick<Trajectory, keyof RolloutIdentity | 'outcome' | 'grade' | 'unanswered' | 'startedAt' | 'endedAt'> {
  readonly turns: readonly (Played &
    Pick<Turn, 'policyVersion' | 'fork' | 'usage'> & {
      readonly sampledIds: { readonly length: number };
      readonly response: Pick<Message, 'tool_calls'>;
    })[];
}

export function summaryOf(rollout: Summarised, seq: number): RolloutSummary {
  const { rolloutId, groupId, taskId, purpose, outcome, grade, turns, unanswered = [], startedAt, endedAt } = rollout;
  const { value: reward = null, parts, metrics } = grade.kind === 'graded' ? grade.reward : {};
  const forks: Partial<Record<ForkCause, number>> = {};
  for (const cause of turns.flatMap(({ fork }) => (fork ? [fork.cause, ...(fork.also ?? [])] : []))) {
    forks[cause] = (forks[cause] ?? 0) + 1;
  }
  const failedCalls = unanswered.filter(({ failure }) => failure !== undefined).length;
  const versions = turns.flatMap(({ trainable, policyVersion }) => (trainable ? [policyVersion] : []));
  return {
    seq,
    rolloutId,
    groupId,
    taskId,
    purpose,
    outcome: outcome.kind,
    reward,
    success: isSuccess(rollout),
    limit: outcome.kind === 'truncated' ? outcome.limit : null,
    ...defined({ parts, metrics }),
    turns: turns.length,
    tokens: sampledTokensIn(rollout),
    tools: [...new Set(turns.flatMap(({ response }) => response.tool_calls?.map((call) => call.function.name) ?? []))],
    forks,
    abandoned: unanswered.length - failedCalls,
    failedCalls,
    versions: versions.length === 0 ? null : [Math.min(...versions), Math.max(...versions)],
    // The system clock may have been set back.
    seconds: Math.max(0, endedAt - startedAt) / 1000,
  };
}

/** The completion id that the client receives. A turn's seed is known before the turn completes and is unique within the rollout. */
export function completionId({ rolloutId }: Pick<RolloutIdentity, 'rolloutId'>, seed: number): string {
  return `${rolloutId.replaceAll(/[^\w-]/g, '_')}-${seed.toString(36)}`;
}

/** Finds a turn by index or completion id, with or without a dialect's prefix. If several responses share the id, returns the first. */
export function turnNamed(identity: RolloutIdentity, turns: readonly Turn[], name: number | string): Turn | undefined {
  if (typeof name === 'number' || /^\d+$/.test(name)) return turns.find(({ index }) => index === Number(name));
  return turns.find(({ sampling }) => {
    const id = completionId(identity, sampling.seed);
    return name === id || name === `chatcmpl-${id}` || name === `resp_${id}` || name === `msg_${id}`;
  });
}

/** What a turn of this version counts: 1 within the bound; beyond it, by the rule, nothing, half for each version too old, or 1. */
export function staleWeight(policyVersion: number, rule: StaleRule | undefined): number {
  const tooOld = rule === undefined ? 0 : rule.policyVersion - policyVersion - rule.most;
  if (tooOld <= 0 || rule?.rule === 'keep') return 1;
  return rule?.rule === 'weigh' ? 0.5 ** tooOld : 0;
}

// Exclusion by marks. An excluded rollout is removed before rewards are compared, so it does not count towards its group's mean. An
// excluded turn stays in its conversation as context: it is not trained, and its reward is compared with nothing.

/** The marks in effect that exclude something, sorted by rollout and turn. */
export function exclusionsIn(marks: Iterable<Mark>): readonly Mark[] {
  const latest = new Map<string, Mark>();
  for (const mark of marks) latest.set(placeOf(mark), mark);
  return [...latest.values()].filter(({ excluded }) => excluded).toSorted(byRolloutAndTurn);
}

/** Looks only at these rollouts: a store may hold marks of many others. */
export function exclusionsOf(rolloutIds: ReadonlySet<string>, marks: readonly Mark[]): readonly Exclusion[] {
  const own = exclusionsIn(marks.filter(({ rolloutId }) => rolloutIds.has(rolloutId)));
  return own.map(({ rolloutId, turn }) => ({ rolloutId, ...(turn === undefined ? {} : { turn }) }));
}

/** Drops excluded rollouts and makes excluded turns untrainable. Unmarked trajectories are returned as the same objects. */
export function withoutExcluded(trajectories: readonly Trajectory[], exclusions: readonly Exclusion[]): readonly Trajectory[] {
  const byRollout = Map.groupBy(exclusions, ({ rolloutId }) => rolloutId);
  return trajectories.flatMap((trajectory) => {
    const excluded = byRollout.get(trajectory.rolloutId)?.map(({ turn }) => turn);
    if (excluded === undefined) return [trajectory];
    if (excluded.includes(undefined)) return [];
    const turns = trajectory.turns.map((turn) => (excluded.includes(turn.index) ? { ...turn, trainable: false } : turn));
    return [{ ...trajectory, turns }];
  });
}

export function placeOf({ rolloutId, turn }: Exclusion): string {
  return JSON.stringify([rolloutId, turn ?? null]);
}

function byRolloutAndTurn(a: Exclusion, b: Exclusion): number {
  if (a.rolloutId !== b.rolloutId) return a.rolloutId < b.rolloutId ? -1 : 1;
  return (a.turn ?? -1) - (b.turn ?? -1);
}

/** The sizes of the last call that did not fit into the context, after `before`; empty if all fitted. */
export function overflowOf({ unanswered = [] }: Pick<Trajectory, 'unanswered'>, before = ''): string {
  const last = unanswered.findLast(({ failure }) => failure?.limit === 'context');
  return last?.failure === undefined ? '' : `${before}${last.failure.message}`;
}

/** Tokens that were sampled, for all roles. */
export function sampledTokensIn({ turns }: Pick<Summarised, 'turns'>): number {
  return turns.reduce((sum, { usage, sampledIds }) => sum + (usage?.completionTokens ?? sampledIds.length), 0);
}
