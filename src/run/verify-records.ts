/**
 * Whether the records of a run agree: ids, tasks, groups and manifests with its settings and with each other, and events.jsonl with the store.
 * Scores, steps and endings are counted again from rollouts. A line that a run must have told and did not is a difference; what a kill may
 * have taken, or a file that is gone, is said not to be kept. Nothing is sampled, graded or trained here; times and messages are not looked at.
 */
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { Store } from '../core/contracts.ts';
import { tried } from '../core/errors.ts';
import type { LoggedEvent, RunEnding, Score, TrainDone, Warn } from '../core/events.ts';
import { placeOf } from '../core/turns.ts';
import type { BatchManifest, RolloutIdentity, Task, Trajectory } from '../core/types.ts';
import { type Group, type Position, START } from '../rollout/scheduler.ts';
import { checkpointName } from './checkpoint.ts';
import { evaluationId, HeldOut, numbered, spread, unusualIn } from './evaluate.ts';
import { groupName, shuffled, trainedBy, withoutMarked } from './groups.ts';
import { compared } from './objective.ts';
import type { EvaluationPlan, TrainPlan } from './plan.ts';
import { identityOf, meansOf, rolloutReport, scoreOf, trajectoriesOf } from './results.ts';
import { learningRateAt } from './settings.ts';
import { agreementIn, named, staleRuleAt } from './step.ts';

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
  const { plan, store, trajectories, manifests, found } = work;
  const taskOf = shuffled(plan.tasks, plan.settings.seed);
  for (const trajectory of trajectories) {
    const { rolloutId, groupId, taskId, purpose } = trajectory;
    const again = identityAgain(plan, trajectory, taskOf) ?? {};
    found.compare(`rollout ${rolloutId}`, { rolloutId, groupId, taskId, purpose }, again, FOREIGN);
  }
  for (const field of ['purpose', 'taskId', 'outcome'] as const) {
    const fieldOf = (one: Trajectory): string => (field === 'outcome' ? one.outcome.kind : one[field]);
    for (const [value, { length }] of Map.groupBy(trajectories, fieldOf)) {
      const listed = await store.count({ [field]: value });
      if (listed !== length) found.differs(`rollouts listed by ${field} ${value}`, `${listed}`, `${length}`);
    }
  }
  const trained = manifests.flatMap(({ rolloutIds }) => rolloutIds).length;
  const listed = await store.count({ trained: true });
  if (listed !== trained) found.differs('rollouts listed as trained', `${listed}`, `${trained}`);
  const groups = groupsIn(work);
  await checkManifests(work, groups);
  if (plan.evaluation !== undefined) return;
  const lines = new Lines(work, groups);
  for (const event of work.events) await lines.follow(event);
  lines.end();
}

/** Undefined if no rollout of this run is called so. Rollouts of another run have its names and tasks. */
function identityAgain(
  { settings, heldOut, evaluation }: VerifyPlan,
  { rolloutId, groupId, taskId, purpose }: Trajectory,
  taskOf: (group: number) => Task,
): Partial<RolloutIdentity> | undefined {
  const [, first = NaN, second = NaN] = (/^[eg](\d+)-(\d+)$/.exec(rolloutId) ?? []).map(Number);
  if (evaluation !== undefined) {
    const [, number, attempt = 1] = (/-(\d+)(?:-again-(\d+))?$/.exec(rolloutId) ?? []).map((part) => Number(part ?? 1));
    const isPlanned = number! <= evaluation.settings.n && evaluation.tasks.some(({ task }) => task.id === taskId);
    return isPlanned ? { ...identityOf(taskId, number!, attempt), taskId } : undefined;
  }
  const asked = heldOut[second - 1];
  const evaluated = evaluationId(first, second);
  if (purpose === 'eval') return asked && { rolloutId: evaluated, groupId: evaluated, taskId: asked.id, purpose };
  if (settings.from !== undefined) return { rolloutId, groupId, taskId, purpose };
  const name = groupName('g', first);
  return second < settings.group
    ? { rolloutId: `${name}-${second}`, groupId: name, taskId: taskOf(first).id, purpose }
    : undefined;
}

function groupsIn({ plan, trajectories }: Work): Groups {
  const place = ({ rolloutId }: Trajectory): number => Number(rolloutId.split('-').at(-1));
  const all = [
    ...Map.groupBy(
      trajectories.filter(({ purpose }) => purpose === 'train'),
      ({ groupId }) => groupId,
    ),
  ];
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
    const { step, policyVersion, checkpoint, stale, excluded = [], digests, metrics } = manifest;
    const isSaved = (i + 1) % settings.checkpointEvery === 0;
    const kept = { step, policyVersion, checkpoint, stale, digested: digests?.weights !== undefined };
    const again = {
      step: i + 1,
      policyVersion: i + 1,
      stale: staleRuleAt(i, settings),
      digested: digests !== undefined && isSaved,
    };
    found.compare(where, kept, { ...again, checkpoint: isSaved ? checkpointOf(i + 1) : null }, FOREIGN);
    const unmarked = excluded.find((one) => !marked.has(placeOf(one)));
    if (unmarked !== undefined) found.differs(where, `${placeOf(unmarked)} excluded`, 'no mark of it', FOREIGN);
    const stray = trainedIn(manifest, groups).find((number) => isTaken(number, before) || !isTaken(number, manifest.groups));
    if (stray !== undefined)
      found.differs(where, `groups ${JSON.stringify(manifest.groups)}`, `group ${stray} was trained`, FOREIGN);
    const batch = await batchAgain(work, manifest, groups);
    if (batch === undefined) found.unchecked.add(AHEAD);
    const own = Object.entries(metrics).filter(([name]) => /^(parts|metrics)\./.test(name));
    if (batch !== undefined) found.compare(where, Object.fromEntries(own), named(meansOf(trajectoriesOf(batch.groups))));
    before = manifest.groups;
  }
  const whole = [...groups].filter(([number, group]) => isTaken(number, before) && group.length === settings.group).length;
  const taken = before.next - 1 - before.pending.length;
  if (whole !== taken && settings.from === undefined) found.differs('groups of training', `${whole} whole`, `${taken} taken`);
}

const AHEAD = 'what was told of groups without signal: where rollouts run ahead, the store does not say which step took them';

/** Undefined where it is not known which groups a step took. `most`: of several tries, the last was the step's. */
async function batchAgain({ plan, manifests }: Work, manifest: BatchManifest, groups: Groups, most = Infinity) {
  const { staleness, groupsPerStep } = plan.settings;
  const [before, own] = [manifests[manifest.step - 2]?.groups ?? START, new Set(trainedIn(manifest, groups))];
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

const EARLY: readonly RunEnding[] = ['solved', 'patience', 'max-time', 'max-tokens', 'rollouts'];
/** Of a step: measured, or counted where it is trained again. */
const MEASURED = ['type', 'at', 'trainedTokens', 'rolloutSeconds', 'trainSeconds', 'saveSeconds'];

type Told<Type extends LoggedEvent['type']> = Extract<LoggedEvent, { readonly type: Type }>;

/** Follows the lines through the sessions of a run: each begins with a start or resumption, and a kill may end it anywhere. */
class Lines {
  readonly #work: Work;
  readonly #groups: Groups;
  readonly #all: ReturnType<typeof numbered>;
  readonly #some: ReturnType<typeof numbered>;
  /** Fields that this run tells of steps: older releases told fewer. */
  readonly #fields: ReadonlySet<string>;
  /** Numbers of evaluations that were told, or cut off where a session ended. */
  readonly #evaluated = new Set<string>();
  #start: Told<'run-start'> | undefined;
  /** The last step, and whether it was taken in this session. */
  #step = 0;
  #isOwn = false;
  #isEnded = true;
  #scores: { before?: Score; during?: Score; after?: Score } = {};

  constructor(work: Work, groups: Groups) {
    const { events, plan } = work;
    this.#work = work;
    this.#groups = groups;
    this.#all = numbered(plan.heldOut);
    this.#some = spread(this.#all, plan.settings.evalTasks);
    this.#fields = new Set(events.flatMap((event) => (event.type === 'step-end' ? Object.keys(event) : [])));
  }

  async follow(event: LoggedEvent): Promise<void> {
    if (event.type === 'run-start') this.#begin(event);
    else if (event.type === 'eval-end') this.#evaluation(event);
    else if (event.type === 'step-end') await this.#takenStep(event);
    else if (event.type === 'done') await this.#done(event as TrainDone);
    else if (event.type === 'error') this.#isEnded = true;
  }

  end(): void {
    const { manifests, found, trajectories } = this.#work;
    if (this.#start === undefined) return void found.unchecked.add('what was told: no scores kept, events.jsonl has none');
    if (this.#step < manifests.length) this.#missing(manifests.length);
    if (!this.#isEnded) found.unchecked.add('how the run ended: events.jsonl does not have it');
    this.#mayHold(this.#step, this.#all);
    const untold = trajectories.find(({ purpose, rolloutId }) => purpose === 'eval' && !this.#evaluated.has(rolloutId));
    if (untold !== undefined) found.differs(`rollout ${untold.rolloutId}`, 'an evaluation', 'none was told', FOREIGN);
  }

  #missing(to: number): void {
    this.#work.found.unchecked.add(`what was told of steps ${this.#step + 1} to ${to}: events.jsonl does not have it`);
  }

  #mayHold(step: number, tasks: ReturnType<typeof numbered>): void {
    for (const { number } of tasks) this.#evaluated.add(evaluationId(step, number));
  }

  #begin(event: Told<'run-start'>): void {
    const { plan, found } = this.#work;
    const { seed, tasks, heldOut, resumedAt = 0 } = event;
    const now = { seed: plan.settings.seed, tasks: plan.tasks.length, heldOut: plan.heldOut.length };
    found.compare('run-start', { seed, tasks, heldOut }, now);
    if (resumedAt < this.#step) found.differs('run-start', `after step ${resumedAt}`, `after step ${this.#step}`);
    // A kill may take one line, and a power cut more.
    if (resumedAt > this.#step + 1) this.#missing(resumedAt);
    this.#mayHold(resumedAt, this.#all);
    this.#start = event;
    this.#step = resumedAt;
    this.#isOwn = false;
    this.#isEnded = false;
    this.#scores = {};
  }

  #evaluation({ when, step, score, temperature = 0 }: Told<'eval-end'>): void {
    const { trajectories, found } = this.#work;
    if (when === 'only') return;
    const where = `evaluation after step ${step}`;
    const tasks = when === 'during' ? this.#some : this.#all;
    const ids = new Set(tasks.map(({ number }) => evaluationId(step, number)));
    const own = trajectories
      .filter(({ rolloutId }) => ids.has(rolloutId))
      .toSorted((a, b) => (a.rolloutId < b.rolloutId ? -1 : 1));
    found.counts.scores++;
    found.compare(where, { ...score, temperature }, { ...scoreOf(own), temperature: 0 });
    const isInPlace = { before: step === 0, during: step === this.#step && this.#isDue(), after: step === this.#step };
    if (this.#start === undefined || !isInPlace[when]) found.differs(where, `${when} training`, `after step ${this.#step}`);
    this.#mayHold(step, tasks);
    this.#scores[when] = score;
  }

  #isDue(): boolean {
    const { evalEvery } = this.#work.plan.settings;
    return this.#all.length > 0 && evalEvery > 0 && this.#step > 0 && this.#step % evalEvery === 0;
  }

  async #takenStep(event: Told<'step-end'>): Promise<void> {
    const { plan, manifests, found } = this.#work;
    const { step } = event;
    const where = `step ${step}`;
    const { before, during, after } = this.#scores;
    const isUntold = (this.#all.length > 0 && !before) || (this.#isOwn && this.#isDue() && !during) || after !== undefined;
    if (this.#start === undefined || step !== this.#step + 1 || isUntold)
      found.differs(where, 'what was told before', 'an evaluation or a step is missing, or one too many');
    this.#step = step;
    this.#isOwn = true;
    delete this.#scores.during;
    const manifest = manifests[step - 1];
    if (manifest === undefined) return found.differs(where, 'told', `${manifests.length} steps`, FOREIGN);
    const { loss, gradNorm, learningRate, ...metrics } = manifest.metrics;
    const rate = learningRateAt(step, { ...plan.settings, steps: this.#start?.steps ?? plan.settings.steps });
    found.compare(where, { learningRate }, { learningRate: rate });
    const batch = plan.settings.staleness > 0 ? undefined : await batchAgain(this.#work, manifest, this.#groups, event.groups);
    const again = { step, policyVersion: step, loss, gradNorm, ...agreementIn(metrics), ...(batch && rolloutReport(batch)) };
    const names = [...this.#fields].filter((name) => (batch ? !MEASURED.includes(name) : name in again));
    const only = (all: object): object => Object.fromEntries(Object.entries(all).filter(([name]) => names.includes(name)));
    found.compare(where, only(event), only(again));
  }

  async #done(event: TrainDone): Promise<void> {
    const { settings, heldOut } = this.#work.plan;
    const { before = null, after = null } = this.#scores;
    const early = this.#step === this.#start?.steps ? ['steps'] : EARLY;
    const others = heldOut.length === 0 ? [...early, 'interrupted'] : early;
    const endings = heldOut.length > 0 && after === null ? ['interrupted'] : others;
    const ending = endings.find((one) => one === event.ending) ?? endings[0];
    const { flow, turns, trainable } = unusualIn(settings);
    const best = await this.#best();
    const checkpoint = this.#step === 0 ? null : checkpointOf(this.#step);
    const told = {
      ...event,
      checkpoint: tailOf(event.checkpoint),
      best: event.best && { ...event.best, checkpoint: tailOf(event.best.checkpoint) },
    };
    const again = { before, after, steps: this.#step, checkpoint, best, ending, flow, turns, trainable };
    const names = Object.keys(again);
    this.#work.found.compare('done', Object.fromEntries(Object.entries(told).filter(([name]) => names.includes(name))), again);
    this.#isEnded = true;
  }

  /** As the run itself finds it when it is resumed. */
  async #best() {
    const { plan, store, stop: halt } = this.#work;
    const none = { run: () => Promise.reject(new Error('nothing is sampled here')), settle: () => {}, sampledTokens: 0 };
    const heldOut = new HeldOut({ ...plan, tasks: plan.heldOut, rollouts: none, tell: () => {}, onProgress: () => {}, halt });
    const { during, after } = this.#scores;
    await heldOut.recall(store, this.#isOwn && !during && !after ? this.#step - 1 : this.#step);
    const chosen = heldOut.recommended(this.#step);
    return chosen === undefined ? null : { ...chosen, checkpoint: checkpointOf(chosen.step) };
  }
}

const checkpointOf = (step: number): string => join('checkpoints', checkpointName(step));

/** Runs are moved: the folders before are not compared. */
const tailOf = (path: string | null): string | null => path && join(...path.split(/[\\/]/).slice(-2));
