/**
 * One stored rollout again, to see what a change of the agent or the grader does to it: its workflow against the recorded answers, or only its
 * grading. No model is opened. What comes from elsewhere (tools, time, chance) may differ, which is told. The run is not changed.
 */
import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import type { ErrorCode } from '../core/error-codes.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { sameJson } from '../core/json.ts';
import type { Task, Trajectory, Turn, UnansweredCall } from '../core/types.ts';
import type { SampledPolicy } from '../engines/open-policy.ts';
import type { RecordedAnswers } from '../gateway/sampling.ts';
import { removeFolder, temporaryFolder } from '../processes/limits.ts';
import { gradedTurns } from '../rollout/record.ts';
import type { RolloutObserver } from '../rollout/runner.ts';
import { readRunFile } from '../run/directory.ts';
import { rolloutIn } from '../run/inspect.ts';
import { openGrader, openParts } from '../run/parts.ts';
import { planReplay, type ReplayPlan } from '../run/plan.ts';
import { keptStore, openStoreOf, requireDirectory } from '../run/run-store.ts';
import { hiddenFiles, isApi, samplingAt } from '../settings/settings.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { loadRenderer } from '../tokens/renderer.ts';
import { comparable, regraded } from './verify.ts';

export interface StoredRollout {
  readonly plan: ReplayPlan;
  readonly trajectory: Trajectory;
  readonly task: Task;
}

type Given = NonNullable<Parameters<typeof planReplay>[1]> & { readonly store?: string };

/** Throws FILE_NOT_FOUND if there is no such rollout or task, USAGE or RESUME_IMPOSSIBLE if there is no workflow to run. */
export async function storedRollout(run: string, rolloutId: string, given: Given = {}): Promise<StoredRollout> {
  requireDirectory(run, given.store);
  await using store = await openStoreOf(run, given);
  const isServed = existsSync(join(run, 'store.sqlite')) || keptStore(run).url !== undefined;
  if (isServed && !existsSync(join(run, 'run.json'))) {
    const found = `${run} holds what agents did at trainyard serve; they ran elsewhere, so there is no workflow to run again`;
    throw new TrainyardError('USAGE', found, `look at it: trainyard show ${run} ${rolloutId}`);
  }
  readRunFile(run, 'FILE_NOT_FOUND');
  const trajectory = await rolloutIn(store, run, rolloutId);
  const plan = await planReplay(run, given);
  const task = plan[trajectory.purpose === 'train' ? 'tasks' : 'heldOut'].find(({ id }) => id === trajectory.taskId);
  if (task !== undefined) return { plan, trajectory, task };
  const hint = 'put the tasks back as they were when the run began';
  throw new TrainyardError('FILE_NOT_FOUND', `the rollout's task ${JSON.stringify(trajectory.taskId)} is not in its file`, hint);
}

/** Where a request first differs from the recorded one: at a message, else in its tools or ids. `turn`: null if none was recorded. */
export interface RequestDifference {
  readonly turn: number | null;
  readonly thread: string;
  readonly message?: number;
  readonly was: unknown;
  readonly is: unknown;
}

export interface Replay {
  readonly trajectory: Trajectory;
  readonly first: RequestDifference | null;
  /** Calls that asked something else, that were not made (by turn), and that were made without a recorded answer. */
  readonly different: number;
  readonly notMade: readonly number[];
  readonly extra: number;
  readonly changes: readonly { readonly what: (typeof COMPARED)[number]; readonly was: unknown; readonly is: unknown }[];
}

const COMPARED = ['outcome', 'output', 'metadata', 'grade'] as const;

interface ReplayOptions {
  readonly warn: Warn;
  readonly stop: AbortSignal;
  readonly observer?: RolloutObserver;
  /** Only grades what was stored. Throws USAGE if no grader that needs no policy graded it. */
  readonly grade?: boolean;
}

export async function replay(stored: StoredRollout, options: ReplayOptions): Promise<Replay> {
  const { trajectory: was } = stored;
  const recorded = new Recording(options.grade ? { turns: [] } : was);
  const trajectory = await (options.grade ? gradedAgain(stored, options.stop) : runAgain(stored, recorded, options));
  const isSame = (what: (typeof COMPARED)[number]): boolean =>
    what === 'grade' ? sameJson(comparable(was.grade), comparable(trajectory.grade)) : sameJson(was[what], trajectory[what]);
  const changes = COMPARED.filter((what) => !isSame(what)).map((what) => ({ what, was: was[what], is: trajectory[what] }));
  const { first, different, notMade, extra } = recorded;
  return { trajectory, first, different, notMade, extra, changes };
}

async function runAgain(stored: StoredRollout, recorded: Recording, options: ReplayOptions): Promise<Trajectory> {
  const { settings, entry } = stored.plan;
  const { rolloutId, groupId, purpose } = stored.trajectory;
  const run = realpathSync(temporaryFolder('trainyard-replay'));
  try {
    const files = { ...hiddenFiles(settings), run };
    const again = { recorded, policy: await standIn(stored) };
    await using parts = await openParts(settings, gradable(entry), { ...options, files, again });
    await using store = await openSqliteStore(':memory:');
    const rollouts = parts.rolloutsInto(store, join(run, 'artifacts'));
    return await rollouts.run({ rolloutId, groupId, purpose }, stored.task, samplingAt(settings.temperature, settings));
  } finally {
    await removeFolder(run);
  }
}

/** The grader's judge would ask the policy, which is not there. */
function gradable(entry: ReplayPlan['entry']): ReplayPlan['entry'] {
  const { graderModule: _, ...rest } = entry;
  if (!rest.grader?.asksPolicy) return entry;
  const why = `${rest.grader.name} asks the policy, which a replay does not open`;
  return { ...rest, grader: { ...rest.grader, asksPolicy: false, grade: async () => ({ kind: 'ungraded', why }) } };
}

/** In place of the policy: its name and, where it is here, its tokenizer. It is never asked. */
async function standIn({ plan: { settings }, trajectory }: StoredRollout): Promise<SampledPolicy> {
  const { engine, model: name } = settings;
  const renderer = isApi(engine) ? undefined : await loadRenderer(name).catch(() => undefined);
  const sample = (): never => {
    throw new TrainyardError('ENGINE_FAILED', 'a replay samples nothing');
  };
  const policyVersion = Math.max(0, ...trajectory.turns.map((turn) => turn.policyVersion));
  const sampled = renderer
    ? { renderer, engine: { vocabSize: renderer.vocabSize, contextLength: Infinity, policyVersion, sample } }
    : { model: { name, baseURL: 'http://replay.invalid', apiKey: '' } };
  return { name, sampled, [Symbol.asyncDispose]: async () => {} };
}

type Asked = Parameters<RecordedAnswers['next']>;

/** Matches calls within their thread: by what they ask, else in order. A recorded failure fails again. */
export class Recording implements RecordedAnswers {
  first: RequestDifference | null = null;
  different = 0;
  extra = 0;
  readonly #left: Turn[];
  readonly #unanswered: UnansweredCall[];
  #taken = 0;

  constructor(trajectory: Pick<Trajectory, 'turns' | 'output' | 'returned' | 'unanswered'>) {
    this.#left = [...gradedTurns(trajectory)];
    this.#unanswered = [...(trajectory.unanswered ?? [])];
  }

  /** What no client received need not be asked for. */
  get notMade(): readonly number[] {
    return this.#left.flatMap(({ index, undelivered }) => (undelivered ? [] : [index]));
  }

  next({ role, thread }: Asked[0], request: Asked[1]): Turn {
    const isOwn = (call: Turn | UnansweredCall): boolean => call.role === role && call.thread === thread;
    const own = this.#left.filter(isOwn);
    const turn = own.find((one) => differenceOf(one, request) === undefined);
    if (turn !== undefined) return this.#take(turn);
    const failed = this.#unanswered.findIndex((call) => isOwn(call) && call.turnsBefore === this.#taken);
    if (failed !== -1) throw failureOf(this.#unanswered.splice(failed, 1)[0]!);
    const [instead] = own;
    if (instead !== undefined) {
      this.different++;
      this.first ??= { turn: instead.index, thread, was: null, is: null, ...differenceOf(instead, request) };
      return this.#take(instead);
    }
    this.extra++;
    this.first ??= { turn: null, thread, was: null, is: request.messages.at(-1) ?? null };
    throw new TrainyardError('REQUEST_INVALID', 'the recorded rollout made no such call, so there is no answer to it');
  }

  #take(turn: Turn): Turn {
    this.#left.splice(this.#left.indexOf(turn), 1);
    this.#taken++;
    return turn;
  }
}

function failureOf({ failure }: UnansweredCall): TrainyardError {
  const { code = 'REQUEST_INVALID', message = 'its client gave up this call when it was recorded', limit } = failure ?? {};
  return new TrainyardError(code as ErrorCode, message, { cause: limit });
}

function differenceOf({ request, promptIds }: Turn, is: Asked[1]): Partial<RequestDifference> | undefined {
  const { messages, tools } = request;
  const message = [...messages, ...is.messages].findIndex((_, i) => !sameJson(messages[i], is.messages[i]));
  if (message !== -1) return { message, was: messages[message] ?? null, is: is.messages[message] ?? null };
  if (!sameJson(tools, is.tools)) return { was: tools, is: is.tools };
  const isSame = is.promptIds === undefined || sameJson([...promptIds], [...is.promptIds]);
  return isSame ? undefined : { was: [...promptIds], is: [...(is.promptIds ?? [])] };
}

async function gradedAgain({ plan, trajectory, task }: StoredRollout, stop: AbortSignal): Promise<Trajectory> {
  const { grader, graderModule } = plan.entry;
  const isOwn = trajectory.grade.kind === 'graded' && trajectory.grade.reward.source === 'workflow';
  if (grader === undefined || grader.asksPolicy || isOwn) {
    const why = isOwn || !grader ? 'the workflow gave the reward itself' : `the grader ${grader.name} asks the policy`;
    const hint = 'leave --grade out to run the workflow again';
    throw new TrainyardError('USAGE', `what was stored cannot be graded again: ${why}`, hint);
  }
  const printed: string[] = [];
  await using runner = await openGrader(plan.settings, grader, graderModule, stop);
  const grade = await regraded(plan, trajectory, task, runner, (text) => void printed.push(text));
  const lines = printed
    .join('')
    .split('\n')
    .filter((text) => text !== '');
  return { ...trajectory, grade, logs: lines.map((text) => ({ at: trajectory.endedAt, text, from: 'grader' })) };
}
