/**
 * One stored rollout again, to see what a change of the agent or the grader does to it. `replay` runs the workflow against the recorded
 * answers and grades it: no model is opened, and what comes from elsewhere (tools, time, chance) may differ, which is told. `gradeAgain` only
 * grades what was stored. Neither writes to the run.
 */
import { existsSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { type ErrorCode, TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { sameJson } from '../core/json.ts';
import type { Grade, Message, Task, Tool, Trajectory, Turn, UnansweredCall } from '../core/types.ts';
import type { RecordedAnswers } from '../gateway/sampling.ts';
import { removeFolder, temporaryFolder } from '../processes/limits.ts';
import type { RolloutObserver } from '../rollout/runner.ts';
import { memoryStore } from '../store/memory.ts';
import { loadRenderer } from '../tokens/renderer.ts';
import type { TrainSettings } from './check-settings.ts';
import { readRunFile } from './directory.ts';
import { openStoreOf, rolloutIn } from './inspect.ts';
import type { SampledPolicy } from './open-policy.ts';
import { openGrader, openParts } from './parts.ts';
import { planReplay, type ReplayPlan } from './plan.ts';
import { isApi, samplingAt } from './settings.ts';
import { comparable, gradedTurns, regraded } from './verify.ts';

export interface StoredRollout {
  readonly plan: ReplayPlan;
  readonly trajectory: Trajectory;
  readonly task: Task;
}

/** Throws FILE_NOT_FOUND if there is no such rollout or task, USAGE and RESUME_IMPOSSIBLE if there is no workflow to run. */
export async function storedRollout(
  run: string,
  rolloutId: string,
  given?: Parameters<typeof planReplay>[1],
): Promise<StoredRollout> {
  await using store = await openStoreOf(run);
  if (existsSync(join(run, 'store.sqlite')) && !existsSync(join(run, 'run.json'))) {
    const found = `${run} holds what agents did at trainyard serve; they ran elsewhere, so there is no workflow to run again`;
    throw new TrainyardError('USAGE', found, { hint: `look at it: trainyard show ${run} ${rolloutId}` });
  }
  readRunFile(run, 'FILE_NOT_FOUND');
  const trajectory = await rolloutIn(store, run, rolloutId);
  const plan = await planReplay(run, given);
  const task = plan[trajectory.purpose === 'train' ? 'tasks' : 'heldOut'].find(({ id }) => id === trajectory.taskId);
  if (task !== undefined) return { plan, trajectory, task };
  throw new TrainyardError('FILE_NOT_FOUND', `the task ${JSON.stringify(trajectory.taskId)} of the rollout is not in its file`, {
    hint: 'put the tasks back as they were when the run began',
  });
}

/** The first message, or else the tools, in which a request differs from what was recorded. `turn`: the recorded one, if there is one. */
export interface RequestDifference {
  readonly turn: number | null;
  readonly thread: string;
  readonly message?: number;
  readonly was: Message | readonly Tool[] | null;
  readonly is: Message | readonly Tool[] | null;
}

export interface Replay {
  readonly trajectory: Trajectory;
  readonly first: RequestDifference | null;
  /** Calls that asked something else, that were not made, and that were made without a recorded answer. */
  readonly different: number;
  readonly notMade: readonly number[];
  readonly extra: number;
  readonly changes: readonly Change[];
}

export interface Change {
  readonly what: 'outcome' | 'output' | 'metadata' | 'grade';
  readonly was: unknown;
  readonly is: unknown;
}

interface ReplayOptions {
  readonly warn: Warn;
  readonly stop: AbortSignal;
  readonly observer?: RolloutObserver;
}

export async function replay({ plan, trajectory, task }: StoredRollout, options: ReplayOptions): Promise<Replay> {
  const { settings, entry } = plan;
  const recorded = new Recording(trajectory);
  const run = realpathSync(temporaryFolder('trainyard-replay'));
  try {
    const again = { recorded, policy: await standIn(settings, trajectory) };
    const files = { run, tasks: [settings.tasks, settings.heldOut, settings.run] };
    await using parts = await openParts(settings, gradable(entry), { ...options, files, again });
    await using store = memoryStore();
    const { rolloutId, groupId, purpose } = trajectory;
    const rollouts = parts.rolloutsInto(store, join(run, 'artifacts'));
    const now = await rollouts.run({ rolloutId, groupId, purpose }, task, samplingAt(settings.temperature, settings));
    const { first, different, notMade, extra } = recorded;
    return { trajectory: now, first, different, notMade, extra, changes: changesBetween(trajectory, now) };
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

/** Stands for the policy, for its name and, where it has one, its tokenizer. It is never asked. */
async function standIn({ engine, model }: TrainSettings, { turns }: Trajectory): Promise<SampledPolicy> {
  const renderer = isApi(engine) ? undefined : await loadRenderer(model).catch(() => undefined);
  const sample = async (): Promise<never> => {
    throw new TrainyardError('ENGINE_FAILED', 'a replay samples nothing');
  };
  const policyVersion = Math.max(0, ...turns.map((turn) => turn.policyVersion));
  const sampled = renderer
    ? { renderer, engine: { vocabSize: renderer.vocabSize, contextLength: Infinity, policyVersion, sample } }
    : { model: { name: model, baseURL: 'http://replay.invalid', apiKey: '' } };
  return { name: model, sampled, [Symbol.asyncDispose]: async () => {} };
}

/** Calls are matched within their thread: by what they ask, else in order. Turns that no client received need not be asked for. */
class Recording implements RecordedAnswers {
  first: RequestDifference | null = null;
  different = 0;
  extra = 0;
  readonly #left: Turn[];
  readonly #failed: UnansweredCall[];
  #taken = 0;

  constructor(trajectory: Trajectory) {
    this.#left = [...gradedTurns(trajectory)];
    this.#failed = [...(trajectory.unanswered ?? [])];
  }

  get notMade(): readonly number[] {
    return this.#left.flatMap(({ index, undelivered }) => (undelivered ? [] : [index]));
  }

  next(caller: Parameters<RecordedAnswers['next']>[0], request: Parameters<RecordedAnswers['next']>[1]): Turn {
    const { role, thread } = caller;
    const isOwn = (call: Turn | UnansweredCall): boolean => call.role === role && call.thread === thread;
    const own = this.#left.filter(isOwn);
    const turn = own.find((one) => differenceOf(one, request) === undefined);
    if (turn !== undefined) return this.#take(turn);
    const failed = this.#failed.find((call) => isOwn(call) && call.turnsBefore === this.#taken);
    if (failed !== undefined) throw this.#failAgain(failed);
    const [instead] = own;
    if (instead === undefined) {
      this.extra++;
      this.first ??= { turn: null, thread, was: null, is: request.messages.at(-1) ?? null };
      throw new TrainyardError('REQUEST_INVALID', 'the recorded rollout made no such call, so there is no answer to it');
    }
    this.different++;
    this.first ??= { turn: instead.index, thread, was: null, is: null, ...differenceOf(instead, request) };
    return this.#take(instead);
  }

  #take(turn: Turn): Turn {
    this.#left.splice(this.#left.indexOf(turn), 1);
    this.#taken++;
    return turn;
  }

  #failAgain(call: UnansweredCall): TrainyardError {
    this.#failed.splice(this.#failed.indexOf(call), 1);
    const { code = 'REQUEST_INVALID', message = 'its client gave up this call when it was recorded', limit } = call.failure ?? {};
    return new TrainyardError(code as ErrorCode, message, { cause: limit });
  }
}

function differenceOf(
  { request: was, promptIds }: Turn,
  is: Parameters<RecordedAnswers['next']>[1],
): Pick<RequestDifference, 'message' | 'was' | 'is'> | undefined {
  const length = Math.max(was.messages.length, is.messages.length);
  for (let i = 0; i < length; i++) {
    const [before, now] = [was.messages[i] ?? null, is.messages[i] ?? null];
    if (!sameJson(before, now)) return { message: i, was: before, is: now };
  }
  if (!sameJson(was.tools, is.tools)) return { was: was.tools, is: is.tools };
  const areIdsSame = is.promptIds === undefined || sameJson([...promptIds], [...is.promptIds]);
  return areIdsSame ? undefined : { was: null, is: null };
}

function changesBetween(was: Trajectory, is: Trajectory): readonly Change[] {
  const parts = (of: Trajectory) => ({
    outcome: of.outcome,
    output: of.output,
    metadata: of.metadata,
    grade: comparable(of.grade),
  });
  const [before, now] = [parts(was), parts(is)];
  const names = (['outcome', 'output', 'metadata', 'grade'] as const).filter((what) => !sameJson(before[what], now[what]));
  return names.map((what) => ({ what, was: before[what], is: now[what] }));
}

export interface GradedAgain {
  readonly was: Grade;
  readonly is: Grade;
  readonly prints: string;
  readonly isSame: boolean;
}

/** Throws USAGE if the stored rollout was not graded by a grader that needs no policy. */
export async function gradeAgain({ plan, trajectory, task }: StoredRollout, { stop }: ReplayOptions): Promise<GradedAgain> {
  const { settings, entry } = plan;
  const { grader, graderModule } = entry;
  const { grade: was } = trajectory;
  const isOwn = was.kind === 'graded' && was.reward.source === 'workflow';
  if (grader === undefined || grader.asksPolicy || isOwn) {
    const why = isOwn || !grader ? 'the workflow gave the reward itself' : `the grader ${grader.name} asks the policy`;
    const hint = 'leave --grade out to run the workflow again';
    throw new TrainyardError('USAGE', `the stored rollout cannot be graded by itself: ${why}`, { hint });
  }
  let prints = '';
  await using runner = await openGrader(settings, grader, graderModule, stop);
  const is = await regraded(plan, trajectory, task, runner, (text) => {
    prints += text;
  });
  return { was, is, prints: prints.trimEnd(), isSame: sameJson(comparable(was), comparable(is)) };
}
