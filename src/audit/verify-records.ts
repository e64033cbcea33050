/**
 * Whether the records of a run agree: ids, tasks, groups and manifests with its settings and with each other, and events.jsonl with the store.
 * Scores, steps and endings are counted again from rollouts. A line that a run must have told and did not is a difference; what a kill may
 * have taken, or a file that is gone, is said not to be kept. Nothing is sampled, graded or trained here; times and messages are not looked at.
 */
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Store } from '../core/contracts.ts';
import { tried } from '../core/errors.ts';
import type { LoggedEvent, Score, TrainDone, Warn } from '../core/events.ts';
import { placeOf } from '../core/turns.ts';
import type { BatchManifest, Trajectory } from '../core/types.ts';
import { checkpointName } from '../engines/checkpoint.ts';
import { evaluationId, HeldOut, numbered, spread } from '../evaluation/evaluate.ts';
import { meansOf, rolloutReport, scoreOf, trajectoriesOf } from '../evaluation/results.ts';
import { type Group, type Position, START } from '../rollout/scheduler.ts';
import type { EvaluationPlan, TrainPlan } from '../run/plan.ts';
import { trainedBy, withoutMarked } from '../training/groups.ts';
import { compared } from '../training/objective.ts';
import { agreementIn, named, staleRuleAt } from '../training/step.ts';

export interface Difference {
  readonly where: string;
  readonly kept: string;
  readonly again: string;
  readonly meaning: string;
}

/** `identity`: only for training runs. `evaluation`: only for evaluations. */
export type VerifyPlan = Pick<TrainPlan, 'settings' | 'entry' | 'tasks' | 'heldOut' | 'kernels' | 'warnings'> &
  Partial<Pick<TrainPlan, 'identity'>> & { readonly evaluation?: EvaluationPlan };

export interface VerifyOptions {
  readonly warn?: Warn;
  readonly stop?: AbortSignal;
  /** Called after each policy version has been sampled again. */
  readonly onStep?: (done: number, of: number) => void;
}

export interface Work extends Required<VerifyOptions> {
  readonly plan: VerifyPlan;
  readonly store: Store;
  readonly events: readonly LoggedEvent[];
  readonly trajectories: readonly Trajectory[];
  readonly manifests: readonly BatchManifest[];
  readonly found: Findings;
}

export const FOREIGN = 'the store holds what this run did not do';
const LIE = 'the store does not give the scores that were told: rollouts are missing or others, or what was told was changed';

export class Findings {
  readonly counts = { turns: 0, rewards: 0, steps: 0, checkpoints: 0, scores: 0 };
  readonly unchecked = new Set<string>();
  different = 0;
  first: Difference | null = null;

  differs(where: string, kept: string, again: string, meaning = LIE): void {
    this.different++;
    this.first ??= { where, kept, again, meaning };
  }

  /** Names the first field that differs, as JSON holds both; of numbers of rollouts first, which explain the others. */
  compare(where: string, kept: object, again: object, meaning?: string): void {
    const [then, now] = [kept, again].map((one) => JSON.parse(JSON.stringify(one)) as Readonly<Record<string, unknown>>);
    const names = ['n', ...Object.keys(then!), ...Object.keys(now!)];
    const name = names.find((one) => !isDeepStrictEqual(then![one], now![one]));
    if (name === undefined) return;
    const shown = (value: unknown): string => `${name} ${JSON.stringify(value)}`;
    this.differs(where, shown(then![name]), shown(now![name]), meaning);
  }
}

// ── the records of the store ─────────────────────────────────────────────────────────────────────────────────────────────

/** Groups of training by number, each in the order of its places; of another run, in the order of the store. */
type Groups = ReadonlyMap<number, readonly Trajectory[]>;

export async function checkRecords(work: Work): Promise<void> {
  const groups = groupsIn(work);
  await checkManifests(work, groups);
  if (work.plan.evaluation === undefined) await checkEvents(work, groups);
}

function groupsIn({ plan, trajectories }: Work): Groups {
  const place = ({ rolloutId }: Trajectory): number => Number(rolloutId.split('-').at(-1));
  const trained = trajectories.filter(({ purpose }) => purpose === 'train');
  const all = [...Map.groupBy(trained, ({ groupId }) => groupId)];
  if (plan.settings.from !== undefined) return new Map(all.map(([, group], i) => [i + 1, group]));
  const numbered = all.map(([id, group]) => [Number(id.slice(1)), group.toSorted((a, b) => place(a) - place(b))] as const);
  return new Map(numbered.toSorted(([a], [b]) => a - b));
}

/** Numbers of the groups that were trained in a step. */
function trainedIn({ rolloutIds }: BatchManifest, groups: Groups): readonly number[] {
  const names = new Set(rolloutIds.map((id) => id.slice(0, id.lastIndexOf('-'))));
  return [...groups].flatMap(([number, group]) => (names.has(group[0]!.groupId) ? [number] : []));
}

const isTaken = (number: number, { next, pending }: Position): boolean => number < next && !pending.includes(number);

async function checkManifests(work: Work, groups: Groups): Promise<void> {
  const { plan, store, manifests, found } = work;
  const { settings } = plan;
  const marked = new Set((await store.marks()).flatMap((mark) => (mark.excluded ? [placeOf(mark)] : [])));
  let before: Position = START;
  for (const [i, manifest] of manifests.entries()) {
    const where = `manifest of step ${i + 1}`;
    const { step, policyVersion, checkpoint, stale, excluded = [], metrics } = manifest;
    const saved = (i + 1) % settings.checkpointEvery === 0 ? checkpointOf(i + 1) : null;
    const again = { step: i + 1, policyVersion: i + 1, checkpoint: saved, stale: staleRuleAt(i, settings) };
    found.compare(where, { step, policyVersion, checkpoint, stale }, again, FOREIGN);
    const unmarked = excluded.find((one) => !marked.has(placeOf(one)));
    if (unmarked !== undefined) found.differs(where, `${placeOf(unmarked)} excluded`, 'no mark of it', FOREIGN);
    const stray = trainedIn(manifest, groups).find((number) => isTaken(number, before) || !isTaken(number, manifest.groups));
    if (stray !== undefined)
      found.differs(where, `groups ${JSON.stringify(manifest.groups)}`, `group ${stray} was trained`, FOREIGN);
    const batch = await batchAgain(work, manifest, groups);
    if (settings.staleness > 0) found.unchecked.add(AHEAD);
    const own = Object.entries(metrics).filter(([name]) => /^(parts|metrics)\./.test(name));
    if (batch !== undefined) found.compare(where, Object.fromEntries(own), named(meansOf(trajectoriesOf(batch.groups))));
    before = manifest.groups;
  }
  const isWhole = (group: readonly Trajectory[]): boolean =>
    group.length === settings.group && group.every(({ taskId }) => taskId === group[0]!.taskId);
  const whole = [...groups].filter(([number, group]) => isTaken(number, before) && isWhole(group)).length;
  const taken = before.next - 1 - before.pending.length;
  if (whole !== taken && settings.from === undefined) found.differs('groups of training', `${whole} whole`, `${taken} taken`);
}

const AHEAD = 'what was told of groups without signal: where rollouts run ahead, the store does not say which step took them';

/** Undefined where it is not known which groups a step took. `most`: of several tries, the last was the step's. */
async function batchAgain({ plan, manifests }: Work, manifest: BatchManifest, groups: Groups, most = Infinity) {
  const { staleness, groupsPerStep } = plan.settings;
  const before = manifests[manifest.step - 2]?.groups ?? START;
  const own = new Set(trainedIn(manifest, groups));
  const isNew = (number: number): boolean =>
    staleness > 0 ? own.has(number) : isTaken(number, manifest.groups) && !isTaken(number, before);
  const taken = [...groups].filter(([number]) => isNew(number));
  if (staleness > 0 && taken.length < groupsPerStep) return undefined;
  const hasSignal = trainedBy(plan);
  const isTrained = ([number, group]: (typeof taken)[number]): boolean =>
    own.has(number) || (tried(() => hasSignal(group)) ?? false);
  const asGroup = ([, trajectories]: (typeof taken)[number]): Group => {
    const { groupId, taskId: id } = trajectories[0]!;
    return { groupId, task: { id, prompt: [] }, trajectories };
  };
  const last = taken.slice(Math.max(0, taken.length - most));
  const batch = {
    groups: last.filter(isTrained).map(asGroup),
    withoutSignal: last.filter((one) => !isTrained(one)).map(asGroup),
    stale: [],
  };
  const marks = (manifest.excluded ?? []).map((one) => ({ ...one, excluded: true, reason: '', at: 0 }));
  return await withoutMarked(batch, { marks: async () => marks }, (group) => compared(group, plan.settings));
}

// ── events.jsonl ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/** Of a step: measured, or counted where it is trained again. */
const MEASURED = ['type', 'at', 'trainedTokens', 'rolloutSeconds', 'trainSeconds', 'saveSeconds'];

type Told<Type extends LoggedEvent['type']> = Extract<LoggedEvent, { readonly type: Type }>;

async function checkEvents(work: Work, groups: Groups): Promise<void> {
  const { plan, events, manifests, trajectories, found } = work;
  const { settings, heldOut } = plan;
  const scores = events.flatMap((event) => (event.type === 'eval-end' ? [event] : []));
  const kept = new Map(trajectories.map((trajectory) => [trajectory.rolloutId, trajectory]));
  const evaluated = new Set(scores.flatMap((event) => checkScore(work, event, kept)));
  // Older releases told fewer numbers.
  const known = new Set(events.flatMap((event) => (event.type === 'step-end' ? Object.keys(event) : [])));
  const steps = new Set<number>();
  /** Steps around which a kill may have taken a line, or a power cut more. */
  const cut = new Set<number>();
  let last = 0;
  for (const event of events) {
    if (event.type === 'run-start') for (let step = last; step <= (event.resumedAt ?? 0); step++) cut.add(step);
    if (event.type === 'run-start') last = event.resumedAt ?? 0;
    if (event.type !== 'step-end') continue;
    if (event.step !== last + 1) found.differs(`step ${event.step}`, `told after step ${last}`, `step ${last + 1}`);
    last = event.step;
    steps.add(last);
    await checkStep(work, event, { groups, known });
  }
  if (steps.size + scores.length === 0) return void found.unchecked.add('what was told: no scores kept, events.jsonl has none');
  const isDue = (step: number): boolean => settings.evalEvery > 0 && step > 0 && step % settings.evalEvery === 0;
  for (const step of [...cut, last]) for (const { number } of numbered(heldOut)) evaluated.add(evaluationId(step, number));
  for (let step = 0; step < manifests.length && heldOut.length > 0; step++) {
    const isKnown = scores.some((one) => one.step === step) || (step > 0 && cut.has(step)) || step >= last;
    if (!isKnown && (step === 0 || isDue(step))) found.differs(`evaluation after step ${step}`, 'nothing told', 'a score');
  }
  const untold = manifests.filter(({ step }) => !steps.has(step)).map(({ step }) => step);
  if (untold.length > 0) found.unchecked.add(`what was told of steps ${untold.join(', ')}: events.jsonl does not have it`);
  const invented = trajectories.find(({ purpose, rolloutId }) => purpose === 'eval' && !evaluated.has(rolloutId));
  if (invented !== undefined) found.differs(`rollout ${invented.rolloutId}`, 'an evaluation', 'none was told', FOREIGN);
  const done = events.findLastIndex(({ type }) => type === 'done');
  const ended = Math.max(
    done,
    events.findLastIndex(({ type }) => type === 'error'),
  );
  const isEnded = ended > events.findLastIndex(({ type }) => ['run-start', 'step-end', 'eval-end'].includes(type));
  if (!isEnded) found.unchecked.add('how the run ended: events.jsonl does not have it');
  if (done !== -1) await checkDone(work, events.slice(0, done), events[done] as TrainDone);
}

/** Returns the ids of the rollouts that the score is of. */
function checkScore({ plan, found }: Work, event: Told<'eval-end'>, kept: ReadonlyMap<string, Trajectory>): readonly string[] {
  const { when, step, score, temperature = 0 } = event;
  const all = numbered(plan.heldOut);
  const tasks = when === 'during' ? spread(all, plan.settings.evalTasks) : all;
  const ids = tasks.map(({ number }) => evaluationId(step, number));
  const own = tasks.flatMap(({ task, number }) => {
    const rollout = kept.get(evaluationId(step, number));
    return rollout === undefined ? [] : [{ rollout, is: { taskId: task.id, groupId: rollout.rolloutId, purpose: 'eval' } }];
  });
  const rollouts = own.map(({ rollout: { taskId, groupId, purpose } }) => ({ taskId, groupId, purpose }));
  const again = { ...scoreOf(own.map(({ rollout }) => rollout)), temperature: 0, rollouts: own.map(({ is }) => is) };
  found.counts.scores++;
  found.compare(`evaluation after step ${step}`, { ...score, temperature, rollouts }, again);
  return ids;
}

/** `known`: fields that this run tells of steps. */
async function checkStep(
  work: Work,
  event: Told<'step-end'>,
  { groups, known }: { readonly groups: Groups; readonly known: ReadonlySet<string> },
): Promise<void> {
  const { plan, manifests, found } = work;
  const { step } = event;
  const manifest = manifests[step - 1];
  if (manifest === undefined) return found.differs(`step ${step}`, 'told', `${manifests.length} steps`, FOREIGN);
  const batch = plan.settings.staleness > 0 ? undefined : await batchAgain(work, manifest, groups, event.groups);
  const { loss, gradNorm, ...metrics } = manifest.metrics;
  const again = { step, policyVersion: step, loss, gradNorm, ...agreementIn(metrics), ...(batch && rolloutReport(batch)) };
  const names = [...known].filter((name) => (batch ? !MEASURED.includes(name) : name in again));
  found.compare(`step ${step}`, only(names, event), only(names, again));
}

export const only = (names: readonly string[], all: object): object =>
  Object.fromEntries(Object.entries(all).filter(([name]) => names.includes(name)));

/** Only the last, which names the checkpoint that others take. `told`: what came before. */
async function checkDone(
  { plan, store, stop: halt, found }: Work,
  told: readonly LoggedEvent[],
  event: TrainDone,
): Promise<void> {
  const start = told.findLastIndex(({ type }) => type === 'run-start');
  const { steps = 0, resumedAt = 0 } = (told[start] ?? {}) as Partial<Told<'run-start'>>;
  const own = told.slice(start);
  const last = own.reduce((most, one) => (one.type === 'step-end' ? one.step : most), resumedAt);
  const scores = own.flatMap((one) => (one.type === 'eval-end' ? [one] : []));
  const scoreAt = (when: string): Score | null => scores.findLast((one) => one.when === when)?.score ?? null;
  const before = scoreAt('before');
  const after = scoreAt('after');
  const isHalted = plan.heldOut.length > 0 ? after === null : event.ending === 'interrupted';
  const ending = isHalted ? 'interrupted' : last === steps ? 'steps' : event.ending;
  // As a run finds it when it is resumed.
  const none = { run: () => Promise.reject(new Error('nothing is sampled here')), settle: () => {}, sampledTokens: 0 };
  const heldOut = new HeldOut({ ...plan, tasks: plan.heldOut, rollouts: none, tell: () => {}, onProgress: () => {}, halt });
  const isMeasured = last === resumedAt || scores.some(({ step }) => step === last);
  await heldOut.recall(store, isMeasured ? last : last - 1);
  const chosen = heldOut.recommended(last);
  const best = chosen === undefined ? null : { ...chosen, checkpoint: checkpointOf(chosen.step) };
  const again = { before, after, steps: last, checkpoint: last === 0 ? null : checkpointOf(last), best, ending };
  const keptBest = event.best && { ...event.best, checkpoint: tailOf(event.best.checkpoint) };
  const kept = { ...event, checkpoint: tailOf(event.checkpoint), best: keptBest };
  found.compare('done', only(Object.keys(again), kept), again);
}

const checkpointOf = (step: number): string => join('checkpoints', checkpointName(step));

/** Runs are moved: the folders before are not compared. */
const tailOf = (path: string | null): string | null => path && join(...path.split(/[\\/]/).slice(-2));
