/**
 * A run that proves itself: whatever can be done again from its store and its first policy is done again, and compared with what was kept.
 *
 * Each turn is sampled again from its seed, each rollout graded again, each step taken again from the rollouts that its manifest names, each
 * checkpoint compared with the weights that this gives. The embedded policy has to agree to the byte. A Tinker server is not asked to sample
 * again; rewards and samples have to be equal there too, and log-probabilities within the noise that the run measured. Nothing in the
 * run's directory is changed. What a workflow returned as its own reward, and what a judge said, is taken as it was kept.
 */
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import type { GraderRunner, Store } from '../core/contracts.ts';
import { messageOf } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { BatchManifest, Grade, Task, Trajectory, Turn } from '../core/types.ts';
import { graderInput } from '../grader/input.ts';
import { inParallel } from '../rollout/in-parallel.ts';
import { artifactsFolder } from '../rollout/rollout-context.ts';
import { gradeOf } from '../rollout/runner.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { loadRenderer } from '../tokens/renderer.ts';
import { AgreementBound } from '../trainer/agreement.ts';
import { digestsOf, savedFiles } from './checkpoint.ts';
import { filesDigest, samplesDigest } from './digests.ts';
import { type EvaluationResumeRequest, planResumedEvaluation } from './evaluation-plan.ts';
import { openPolicy } from './open-policy.ts';
import { planResumed, type ResumeRequest, type RunPlan } from './plan.ts';
import type { Policy } from './policy.ts';
import { stepAgain } from './resume.ts';
import { isEvaluation, lockRun, readRunFile } from './run-directory.ts';
import { TRAIN_DEFAULTS } from './settings.ts';
import { update } from './step.ts';
import { openGrader } from './workshop.ts';

/** What is not as it was kept, where, and what that means. */
export interface Difference {
  readonly where: string;
  readonly kept: string;
  readonly again: string;
  readonly meaning: string;
}

export interface Verification {
  /** How many were done again. */
  readonly turns: number;
  readonly rewards: number;
  readonly steps: number;
  readonly checkpoints: number;
  readonly different: number;
  readonly first: Difference | null;
  /** What could not be done again, in words. */
  readonly unchecked: readonly string[];
}

export interface VerifyOptions {
  readonly warn?: Warn;
  readonly stop?: AbortSignal;
  /** Told after each version of the policy: its turns were sampled again. */
  readonly onStep?: (done: number, of: number) => void;
}

/** Throws where the run cannot be taken up at all: RESUME_IMPOSSIBLE, STORE_FORMAT. A run begun from TypeScript is given its entry and tasks again. */
export async function verify(
  request: ResumeRequest,
  { warn = () => {}, stop = new AbortController().signal, onStep = () => {} }: VerifyOptions = {},
): Promise<Verification> {
  const { run } = request;
  const plan = await planOf(request);
  for (const { code, message } of plan.warnings) warn(code, message);
  using _lock = lockRun(run);
  const { id } = readRunFile(run) as { readonly id?: string };
  await using store = await openSqliteStore(join(run, 'store.sqlite'), id);
  const found = new Findings();
  const trajectories = await store.query();
  await gradeAgain(plan, trajectories, found, stop);
  await trainAgain({ plan, store, trajectories, found, warn, stop, onStep });
  const { counts, different, first, unchecked } = found;
  return { ...counts, different, first, unchecked: [...unchecked] };
}

type VerifyPlan = Pick<RunPlan, 'settings' | 'entry' | 'tasks' | 'heldOut' | 'kernels' | 'warnings'>;

/** An evaluation is a run that takes no steps. */
async function planOf(request: ResumeRequest): Promise<VerifyPlan> {
  const { run } = request;
  if (!isEvaluation(readRunFile(run))) return await planResumed(request);
  const { tasks, settings, ...plan } = await planResumedEvaluation(request as EvaluationResumeRequest);
  return {
    ...plan,
    settings: { ...TRAIN_DEFAULTS, ...settings, run, tasks: [] },
    tasks: [],
    heldOut: tasks.map((one) => one.task),
  };
}

class Findings {
  readonly counts = { turns: 0, rewards: 0, steps: 0, checkpoints: 0 };
  readonly unchecked = new Set<string>();
  different = 0;
  first: Difference | null = null;

  differs(difference: Difference): void {
    this.different++;
    this.first ??= difference;
  }
}

async function gradeAgain(
  plan: VerifyPlan,
  trajectories: readonly Trajectory[],
  found: Findings,
  stop: AbortSignal,
): Promise<void> {
  const { settings, entry } = plan;
  const { grader } = entry;
  if (grader === undefined) return void found.unchecked.add('rewards: the workflow gave them itself');
  if (grader.asksPolicy || grader.judges)
    return void found.unchecked.add(`rewards: ${grader.name} asks a model, whose verdicts are kept`);
  await using runner = await openGrader(settings, grader, entry.graderModule, stop);
  const tasks = { train: byId(plan.tasks), eval: byId(plan.heldOut) };
  await inParallel(trajectories, settings.concurrency, async (trajectory) => {
    stop.throwIfAborted();
    const { rolloutId, purpose, taskId, grade } = trajectory;
    if (grade.kind === 'failed') return void found.unchecked.add('rewards: their grading failed');
    if (grade.kind === 'graded' && grade.reward.source === 'workflow') {
      return void found.unchecked.add('rewards: the workflow gave them itself');
    }
    const task = tasks[purpose].get(taskId);
    const where = `rollout ${rolloutId}`;
    if (task === undefined) return found.differs({ where, kept: `task ${taskId}`, again: 'no such task', meaning: FOREIGN });
    found.counts.rewards++;
    const again = await regraded(plan, trajectory, task, runner);
    const [before, now] = [comparable(grade), comparable(again)];
    if (isDeepStrictEqual(before, now)) return;
    const meaning = 'this reward was not given by the grader as it is now, or the grader does not give the same reward twice';
    found.differs({ where, kept: JSON.stringify(before), again: JSON.stringify(now), meaning });
  });
}

const FOREIGN = 'the store holds what this run did not do';

function byId(tasks: readonly Task[]): ReadonlyMap<string, Task> {
  return new Map(tasks.map((task) => [task.id, task]));
}

async function regraded(
  { settings, entry }: VerifyPlan,
  trajectory: Trajectory,
  task: Task,
  grader: GraderRunner,
): Promise<Grade> {
  const { turns, outcome, output, metadata, metrics, returned, grade } = trajectory;
  const { rolloutId, groupId, taskId, purpose } = trajectory;
  const credit = grade.kind === 'graded' ? grade.reward.credit : undefined;
  const result = Object.fromEntries(
    Object.entries({ output, metadata, metrics, credit, ...returned }).filter(([, value]) => value !== undefined),
  );
  const folder = artifactsFolder(join(settings.run, 'artifacts'), rolloutId);
  const artifactsDir = folder !== null && existsSync(folder) ? folder : null;
  const parts = { grader, workflow: entry.workflow, turnDiscount: settings.turnDiscount, graderInput };
  const identity = { rolloutId, groupId, taskId, purpose };
  return await gradeOf(parts, { identity, task }, { turns, outcome, result, artifactsDir });
}

/** What counts: not what else was measured, such as a time. */
function comparable(grade: Grade): unknown {
  if (grade.kind !== 'graded') return grade.kind;
  const { metrics: _, ...reward } = grade.reward;
  return JSON.parse(JSON.stringify(reward));
}

interface Replay {
  readonly plan: VerifyPlan;
  readonly store: Store;
  readonly trajectories: readonly Trajectory[];
  readonly found: Findings;
  readonly warn: Warn;
  readonly stop: AbortSignal;
  readonly onStep: (done: number, of: number) => void;
}

/** Version by version, until something differs: from there on everything would. */
async function trainAgain(replay: Replay): Promise<void> {
  const { plan, store, trajectories, found, stop, onStep } = replay;
  const { settings } = plan;
  const manifests = await store.manifests();
  const turns = Map.groupBy(turnsOf(trajectories), ({ turn }) => turn.policyVersion);
  for (const version of turns.keys()) {
    if (version <= manifests.length) continue;
    const where = `rollout ${turns.get(version)![0]!.rolloutId}`;
    found.differs({ where, kept: `policy version ${version}`, again: `${manifests.length} steps`, meaning: FOREIGN });
  }
  await using policy = await policyOf(replay);
  const renderer = await loadRenderer(settings.model);
  if (policy !== undefined) await policy.trainer.load(settings.model);
  if (settings.kl > 0) await policy?.trainer.freezeReference();
  const bound = new AgreementBound(manifests[0]?.metrics['meanDifference']);
  for (let version = 0; version <= manifests.length && found.different === 0; version++) {
    stop.throwIfAborted();
    if (policy !== undefined && settings.engine === 'embedded') {
      await policy.trainer.publish(version);
      await sampleAgain(policy, turns.get(version) ?? [], renderer.stopIds, replay);
    }
    const manifest = manifests[version];
    if (manifest !== undefined && found.different === 0) await takeAgain(policy, manifest, bound, replay);
    onStep(version, manifests.length);
  }
}

interface KeptTurn {
  readonly rolloutId: string;
  readonly turn: Turn;
}

/** Those that the policy sampled. */
function turnsOf(trajectories: readonly Trajectory[]): readonly KeptTurn[] {
  return trajectories.flatMap(({ rolloutId, turns }) =>
    turns.flatMap((turn) => (turn.model === undefined ? [{ rolloutId, turn }] : [])),
  );
}

async function policyOf({ plan, found, warn, stop }: Replay): Promise<Policy | undefined> {
  const { settings, kernels } = plan;
  const { vocabSize } = await loadRenderer(settings.model);
  const opening = openPolicy(settings, vocabSize, { warn, stop, kernels });
  if (settings.engine === 'embedded') return await opening;
  found.unchecked.add('turns: a Tinker server is not asked to sample them again');
  return await opening.catch((thrown: unknown) => {
    found.unchecked.add(`steps: the server cannot train them again: ${messageOf(thrown)}`);
    return undefined;
  });
}

async function sampleAgain(
  { engine }: Policy,
  turns: readonly KeptTurn[],
  stopIds: readonly number[],
  replay: Replay,
): Promise<void> {
  const { plan, found, stop } = replay;
  await inParallel(turns, plan.settings.concurrency, async ({ rolloutId, turn }) => {
    const { promptIds, sampledIds, logprobs, sampling } = turn;
    const request = { promptIds, sampling: sampling.effective, stopIds, seed: sampling.seed, affinity: rolloutId };
    const result = await engine.sample(request, stop);
    found.counts.turns++;
    // A text that ends an answer may come before the policy does.
    const isCut = turn.stopReason === 'stop' && !stopIds.includes(sampledIds.at(-1)!);
    const length = isCut ? sampledIds.length : result.ids.length;
    const again = { ids: result.ids.slice(0, length), logprobs: result.logprobs.slice(0, length) };
    if (isDeepStrictEqual(again, { ids: sampledIds, logprobs })) return;
    const at = sampledIds.findIndex((id, i) => id !== again.ids[i] || logprobs[i] !== again.logprobs[i]);
    const shown = (ids: Int32Array, values: Float32Array): string =>
      at === -1 ? `${ids.length} tokens` : `token ${at}: id ${ids[at]}, log-probability ${values[at]}`;
    found.differs({
      where: `rollout ${rolloutId}, turn ${turn.index}`,
      kept: shown(sampledIds, logprobs),
      again: shown(again.ids, again.logprobs),
      meaning: `policy version ${turn.policyVersion} did not sample this at temperature ${sampling.effective.temperature}: the engine or the store lies`,
    });
  });
}

/** The samples of a step, its update, and the checkpoint it led to. */
async function takeAgain(
  policy: Policy | undefined,
  manifest: BatchManifest,
  bound: AgreementBound,
  replay: Replay,
): Promise<void> {
  const { plan, store, found } = replay;
  const { settings } = plan;
  const where = `step ${manifest.step}`;
  const { digests, metrics } = manifest;
  let inHand: Awaited<ReturnType<typeof stepAgain>>;
  try {
    inHand = await stepAgain(store, manifest, settings);
  } catch (thrown) {
    return found.differs({ where, kept: 'its manifest', again: messageOf(thrown), meaning: FOREIGN });
  }
  const samples = samplesDigest(inHand.batch.samples);
  if (digests !== undefined && digests.samples !== samples) {
    const meaning = 'other tokens, log-probabilities, rewards or advantages were trained than those that were kept';
    return found.differs({ where, kept: `samples ${short(digests.samples)}`, again: `samples ${short(samples)}`, meaning });
  }
  if (policy === undefined) return;
  const updated = await update(policy.trainer, inHand, settings);
  found.counts.steps++;
  if (settings.engine === 'tinker') {
    const expected = updated.agreement && bound.exceededBy(updated.agreement);
    if (expected === undefined) return;
    const again = `log-probabilities that differ by ${updated.agreement?.meanDifference}, expected ${expected}`;
    return found.differs({
      where,
      kept: 'log-probabilities',
      again,
      meaning: 'the weights that sampled are not those of this step',
    });
  }
  const numbers = { loss: updated.loss, gradNorm: updated.gradNorm, ...updated.metrics };
  const [name, value] = Object.entries(numbers).find(([key, one]) => metrics[key] !== undefined && metrics[key] !== one) ?? [];
  if (name !== undefined) {
    const meaning = 'the step was computed from something else, or by another kind of processor';
    return found.differs({ where, kept: `${name} ${metrics[name]}`, again: `${name} ${value}`, meaning });
  }
  await compareWeights(policy, manifest, replay);
}

async function compareWeights({ trainer }: Policy, manifest: BatchManifest, { plan, found }: Replay): Promise<void> {
  const { settings } = plan;
  const { step, checkpoint, digests } = manifest;
  const scratch = await mkdtemp(join(tmpdir(), 'trainyard-verify-'));
  try {
    const files = await savedFiles(trainer, join(scratch, 'model'), settings.model);
    const folder = checkpoint === null ? undefined : join(settings.run, checkpoint);
    const onDisk = folder !== undefined && existsSync(folder) ? await digestsOf(folder) : undefined;
    const kept = [...(digests?.weights === undefined ? [] : [digests.weights]), ...(onDisk ? [filesDigest(onDisk)] : [])];
    if (kept.length === 0) return;
    found.counts.checkpoints++;
    const again = filesDigest(files);
    const other = kept.find((digest) => digest !== again);
    if (other === undefined) return;
    const changed = Object.keys(files).find((name) => onDisk?.[name] !== files[name]) ?? 'its files';
    const meaning = 'these are not the weights that the rollouts of the run give';
    found.differs({ where: `checkpoint of step ${step}`, kept: `${changed} ${short(other)}`, again: short(again), meaning });
  } finally {
    await rm(scratch, { recursive: true, force: true });
  }
}

const short = (digest: string): string => digest.slice(0, 12);
