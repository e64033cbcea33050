/**
 * Verifies a run by redoing everything that its store and first policy allow, and comparing the results. It samples each turn again from
 * its seed, regrades rewards, recomputes steps from their manifests' rollouts, and compares checkpoints; verify-words.ts compares words with
 * tokens, verify-records.ts what was told and counted with the rollouts. The embedded policy must match bit for bit. A Tinker server is not
 * asked to sample again: rewards and samples must still be equal, and log-probabilities must agree within the noise that the run measured.
 * Rewards returned by a workflow and verdicts of a judge are not rechecked. The run's directory is not changed.
 */
import { existsSync, readFileSync } from 'node:fs';
import { cp } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { isDeepStrictEqual } from 'node:util';
import { mapConcurrently } from '../core/async.ts';
import type { GraderRunner } from '../core/contracts.ts';
import { messageOf } from '../core/errors.ts';
import type { EvalDone } from '../core/events.ts';
import type { BatchManifest, Grade, Task, Trajectory, Turn } from '../core/types.ts';
import { checkpointName, digestsOf, filesDigest, labelIn, loadFirst, savedFiles, savedSteps } from '../engines/checkpoint.ts';
import { openPolicy, type Policy } from '../engines/open-policy.ts';
import { Results, reportOf } from '../evaluation/results.ts';
import { constraintOf } from '../gateway/sampling.ts';
import { graderInput } from '../grading/call.ts';
import { removeFolder, temporaryFolder } from '../processes/limits.ts';
import { endedAs, gradeOf } from '../rollout/record.ts';
import { artifactsFolder } from '../rollout/rollout-context.ts';
import { eventsIn, isEvaluation, readRunFile } from '../run/directory.ts';
import { openGrader } from '../run/parts.ts';
import {
  type EvaluationPlan,
  type EvaluationResumeRequest,
  planResumedEvaluation,
  planResumedTraining,
  type ResumeRequest,
  type TrainPlan,
} from '../run/plan.ts';
import { openStoreOf, requireDirectory } from '../run/run-store.ts';
import { TRAIN_DEFAULTS } from '../settings/setting-rows.ts';
import { isApi } from '../settings/settings.ts';
import { takeLock } from '../store/files.ts';
import { loadRenderer, type Renderer } from '../tokens/renderer.ts';
import { AgreementBound } from '../training/agreement.ts';
import { checkLoss, needsReference } from '../training/objective.ts';
import { stepOf } from '../training/resume.ts';
import { samplesDigest, update } from '../training/step.ts';
import type { Difference, VerifyOptions, VerifyPlan, Work } from './verify-records.ts';
import { checkRecords, Findings, FOREIGN, only } from './verify-records.ts';
import { checkWords } from './verify-words.ts';

export interface Verification {
  readonly turns: number;
  readonly rewards: number;
  readonly steps: number;
  readonly checkpoints: number;
  readonly scores: number;
  readonly different: number;
  readonly first: Difference | null;
  readonly unchecked: readonly string[];
}

/**
 * Throws FILE_NOT_FOUND if there is no run, RESUME_IMPOSSIBLE or STORE_FORMAT if it cannot be resumed. Runs begun from TypeScript need entry
 * and tasks again.
 */
export async function verify(
  request: ResumeRequest,
  { warn = () => {}, stop = new AbortController().signal, onStep = () => {} }: VerifyOptions = {},
): Promise<Verification> {
  const { run, store: url } = request;
  requireDirectory(run, url);
  const { id } = readRunFile(run, 'FILE_NOT_FOUND') as { readonly id: string };
  const plan = await planOf(request);
  using _lock = takeLock(resolve(run));
  const events = eventsIn(run);
  const earlier = events.filter((event) => event.type === 'warning' && event.code === 'ENTRY_CHANGED');
  for (const { code, message } of [...(earlier as TrainPlan['warnings']), ...plan.warnings]) {
    warn(code, code === 'ENTRY_CHANGED' ? `${message.split(';')[0]}; rewards are graded with the code as it is now` : message);
  }
  await using store = await openStoreOf(run, { store: url, id });
  const found = new Findings();
  const trajectories = await store.query();
  const manifests = await store.manifests();
  const work: Work = { plan, store, events, trajectories, manifests, found, warn, stop, onStep };
  await checkLabels(work);
  await checkRecords(work);
  if (plan.evaluation !== undefined) await scoreEvaluation(work, plan.evaluation);
  await gradeAgain(work);
  const api = 'turns: the policy is behind an API, which does not answer the same twice';
  if (isApi(plan.settings.engine)) found.unchecked.add(api);
  else await trainAgain(work);
  const { counts, different, first, unchecked } = found;
  return { ...counts, different, first, unchecked: [...unchecked] };
}

/** Says first if all that follows is of other settings. The checkpoint that a kill kept from being committed is not looked at. */
async function checkLabels({ plan, manifests, found }: Work): Promise<void> {
  const folder = join(plan.settings.run, 'checkpoints');
  const steps: readonly number[] = await savedSteps(folder).catch(() => []);
  for (const step of steps.filter((one) => one <= manifests.length)) {
    const { run, step: labelled } = await labelIn(join(folder, checkpointName(step)));
    const where = `checkpoint of step ${step}`;
    if (run !== plan.identity) found.differs(where, 'a run with other settings', 'run.json', FOREIGN);
    else if (labelled !== step) found.differs(where, `labelled as of step ${labelled}`, `step ${step}`, FOREIGN);
  }
}

/** Treats an evaluation as a run without steps. */
async function planOf(request: ResumeRequest): Promise<VerifyPlan> {
  const { run } = request;
  if (!isEvaluation(readRunFile(run))) return await planResumedTraining(request);
  const evaluation = await planResumedEvaluation(request as EvaluationResumeRequest);
  const settings = { ...TRAIN_DEFAULTS, ...evaluation.settings, run, tasks: [] };
  return { ...evaluation, settings, tasks: [], heldOut: evaluation.tasks.map((one) => one.task), evaluation };
}

/** An evaluation that has not finished has no score yet. What was told is that of the last time that it went on. */
async function scoreEvaluation({ store, events, found }: Work, { tasks, settings }: EvaluationPlan): Promise<void> {
  const file = join(settings.run ?? '', 'metrics.json');
  const [told, done] = ['eval-end', 'done'].map((type) => events.findLast((event) => event.type === type));
  if (!existsSync(file) || told?.type !== 'eval-end' || done === undefined) found.unchecked.add('scores: not all were kept');
  if (!existsSync(file)) return;
  const results = new Results(tasks, settings.n);
  await results.recall(store);
  const again = reportOf(results.byTask(), settings);
  found.counts.scores++;
  found.compare('metrics.json', JSON.parse(readFileSync(file, 'utf8')) as object, again);
  if (told?.type === 'eval-end') found.compare('eval-end', told.score, only(Object.keys(told.score), again));
  const { cost: _, ...calls } = (done as EvalDone | undefined)?.calls ?? {};
  if (done !== undefined) found.compare('done', { ...only(Object.keys(again), done), ...(again.calls && { calls }) }, again);
}

async function gradeAgain({ plan, trajectories, found, stop }: Work): Promise<void> {
  const { settings, entry } = plan;
  const { grader } = entry;
  const ownRewards = 'rewards: the workflow gave them itself';
  if (grader === undefined) return void found.unchecked.add(ownRewards);
  if (grader.asksPolicy || grader.judges) {
    return void found.unchecked.add(`rewards: ${grader.name} asks a model, whose verdicts are kept`);
  }
  await using runner = await openGrader(settings, grader, entry.graderModule, stop);
  const byId = (tasks: readonly Task[]) => new Map(tasks.map((task) => [task.id, task]));
  const tasks = { train: byId(plan.tasks), eval: byId(plan.heldOut) };
  const gradeOne = async (trajectory: Trajectory): Promise<Parameters<Findings['differs']> | undefined> => {
    stop.throwIfAborted();
    const { purpose, taskId, grade, rolloutId } = trajectory;
    const where = `rollout ${rolloutId}`;
    const isOwn = grade.kind === 'graded' && grade.reward.source === 'workflow';
    if (grade.kind === 'failed' || isOwn) {
      found.unchecked.add(isOwn ? ownRewards : 'rewards: those whose grading failed');
      return undefined;
    }
    const task = tasks[purpose].get(taskId);
    if (task === undefined) return [where, `task ${taskId}`, 'no such task', FOREIGN];
    if (grade.kind === 'graded') found.counts.rewards++;
    const kept = comparable(grade);
    const again = comparable(await regraded(plan, trajectory, task, runner));
    if (isDeepStrictEqual(kept, again)) return undefined;
    const meaning = 'the grader as it is now did not give this reward, or does not give the same twice';
    return [where, JSON.stringify(kept), JSON.stringify(again), meaning];
  };
  // In rollout order, whichever was graded first.
  for (const difference of (await mapConcurrently(trajectories, settings.concurrency, gradeOne)) ?? [])
    if (difference !== undefined) found.differs(...difference);
}

/** Grades a stored rollout with the grader as it is now. `print` gets what that prints. */
export async function regraded(
  { settings, entry }: Pick<VerifyPlan, 'settings' | 'entry'>,
  trajectory: Trajectory,
  task: Task,
  grader: GraderRunner,
  print?: (text: string) => void,
): Promise<Grade> {
  const parts = { grader, workflow: entry.workflow, turnDiscount: settings.turnDiscount, graderInput };
  const grade = (artifactsDir: string | null): Promise<Grade> =>
    gradeOf(parts, { identity: trajectory, task }, endedAs(trajectory, artifactsDir), print);
  const folder = artifactsFolder(join(settings.run, 'artifacts'), trajectory.rolloutId);
  if (folder === null || !existsSync(folder)) return await grade(null);
  // A copy, because a grader may write there.
  const scratch = temporaryFolder('trainyard-verify');
  try {
    await cp(folder, scratch, { recursive: true });
    return await grade(scratch);
  } finally {
    await removeFolder(scratch);
  }
}

/** Ignores metrics, which may hold a duration, for example. */
export function comparable(grade: Grade): unknown {
  if (grade.kind !== 'graded') return grade.kind === 'failed' ? `${grade.code}: ${grade.message}` : grade.kind;
  const { metrics: _, ...reward } = grade.reward;
  return JSON.parse(JSON.stringify(reward));
}

/** Stops at the first difference, since everything after it would differ too. */
async function trainAgain(work: Work): Promise<void> {
  const { plan, trajectories, manifests, found, stop, onStep } = work;
  const { settings } = plan;
  const made = settings.from === undefined ? trajectories : trajectories.filter(({ purpose }) => purpose === 'eval');
  const sampled = made.flatMap(({ rolloutId, turns }) => turns.map((turn) => ({ rolloutId, turn })));
  const ofPolicy = sampled.filter(({ turn }) => turn.model === undefined);
  if (settings.from !== undefined) found.unchecked.add(`turns of training: verify ${settings.from}, which made them`);
  if (ofPolicy.length < sampled.length) found.unchecked.add('turns of other models than the policy');
  const byVersion = Map.groupBy(ofPolicy, ({ turn }) => turn.policyVersion);
  const taken = `${manifests.length} steps`;
  for (const [version, [first]] of byVersion) {
    if (version > manifests.length) found.differs(`rollout ${first?.rolloutId}`, `policy version ${version}`, taken, FOREIGN);
  }
  const renderer = await loadRenderer(settings.model);
  for (const trajectory of made) checkWords(trajectory, renderer, work);
  await using policy = await policyOf(work, renderer.vocabSize);
  if (policy !== undefined) {
    await loadFirst(policy.trainer, settings.model);
    await checkLoss(policy.trainer, settings);
  }
  if (needsReference(settings)) await policy?.trainer.freezeReference();
  const newest = (await savedSteps(join(settings.run, 'checkpoints')).catch(() => [])).at(-1) ?? 0;
  // A killed run may have saved one checkpoint that it did not commit.
  if (newest > manifests.length + 1) found.differs(`checkpoint of step ${newest}`, 'its files', taken, FOREIGN);
  if (found.different > 0) found.unchecked.add('turns, steps and checkpoints: something differed before');
  const bound = new AgreementBound(manifests);
  for (let version = 0; version <= manifests.length && found.different === 0; version++) {
    stop.throwIfAborted();
    const turns = byVersion.get(version) ?? [];
    const manifest = manifests[version];
    if (policy !== undefined && settings.engine === 'embedded') {
      await policy.trainer.publish(version);
      await sampleAgain(policy, turns, renderer, work);
    } else if (policy !== undefined && manifest !== undefined) {
      found.counts.turns += turns.filter(({ rolloutId }) => manifest.rolloutIds.includes(rolloutId)).length;
    }
    if (manifest !== undefined && found.different === 0) await stepAgain(policy, manifest, bound, work);
    onStep(version, manifests.length);
  }
}

async function policyOf({ plan, found, warn, stop }: Work, vocabSize: number): Promise<Policy | undefined> {
  const { settings, kernels } = plan;
  const opening = openPolicy(settings, vocabSize, { warn, stop, kernels });
  if (settings.engine === 'embedded') return await opening;
  found.unchecked.add('turns that were not trained: a Tinker server is not asked to sample again');
  return await opening.catch((thrown: unknown) => {
    found.unchecked.add(`turns and steps: the server cannot train again: ${messageOf(thrown)}`);
    return undefined;
  });
}

async function sampleAgain(
  { engine }: Policy,
  turns: readonly { readonly rolloutId: string; readonly turn: Turn }[],
  renderer: Renderer,
  { plan, found, stop }: Work,
): Promise<void> {
  const { stopIds } = renderer;
  await mapConcurrently(turns, plan.settings.concurrency, async ({ rolloutId, turn }) => {
    const { promptIds, sampledIds, logprobs, sampling, constrained } = turn;
    const { effective, seed } = sampling;
    const constraint = constrained && constraintOf(renderer, constrained, turn.request.tools);
    const request = { promptIds, sampling: effective, stopIds, seed, affinity: rolloutId, ...(constraint && { constraint }) };
    const result = await engine.sample(request, stop);
    found.counts.turns++;
    // A stop text may have ended the response before the policy did.
    const isCut = turn.stopReason === 'stop' && !stopIds.includes(sampledIds.at(-1)!);
    const length = isCut ? sampledIds.length : result.ids.length;
    const again = { ids: result.ids.slice(0, length), logprobs: result.logprobs.slice(0, length) };
    if (isDeepStrictEqual(again, { ids: sampledIds, logprobs })) return;
    const at = sampledIds.findIndex((id, i) => id !== again.ids[i] || logprobs[i] !== again.logprobs[i]);
    const shown = (ids: Int32Array, values: Float32Array): string =>
      at === -1 ? `${ids.length} tokens` : `token ${at}: id ${ids[at]}, log-probability ${values[at]}`;
    const meaning = `policy version ${turn.policyVersion} did not sample this at temperature ${effective.temperature}: the engine reported something else, or the store was changed`;
    const kept = shown(sampledIds, logprobs);
    const now = shown(again.ids, again.logprobs);
    found.differs(`rollout ${rolloutId}, turn ${turn.index}`, kept, now, meaning);
  });
}

/** Compares a step's samples, its update, and the resulting checkpoint. */
async function stepAgain(policy: Policy | undefined, manifest: BatchManifest, bound: AgreementBound, work: Work): Promise<void> {
  const { store, events, found } = work;
  const { settings } = work.plan;
  const { digests, metrics } = manifest;
  const differs = (kept: string, again: string, meaning: string): void =>
    found.differs(`step ${manifest.step}`, kept, again, meaning);
  const next = await stepOf(store, manifest, settings).catch((thrown: unknown) => messageOf(thrown));
  if (typeof next === 'string') return differs('its manifest', next, FOREIGN);
  const samples = samplesDigest(next.batch.samples);
  if (digests !== undefined && digests.samples !== samples) {
    const meaning = 'other tokens, log-probabilities, rewards or advantages were trained than those that were kept';
    return differs(`samples ${short(digests.samples)}`, `samples ${short(samples)}`, meaning);
  }
  const told = events.find((event) => event.type === 'step-end' && event.step === manifest.step) ?? next.batch;
  found.compare(`step ${manifest.step}`, only(['trainedTokens'], told), only(['trainedTokens'], next.batch));
  if (policy === undefined) return;
  const { loss, gradNorm, agreement, metrics: others } = await update(policy.trainer, next, settings);
  found.counts.steps++;
  if (settings.engine === 'tinker') {
    const expected = agreement && bound.exceededBy(agreement);
    if (expected === undefined) return;
    const again = `ones that differ by ${agreement?.meanDifference} on average, expected ${expected}`;
    return differs('log-probabilities', again, 'the weights that sampled are not those of this step');
  }
  const numbers: Readonly<Record<string, number | undefined>> = { loss, gradNorm, ...others };
  // Older runs kept fewer numbers. The learning rate, and means of what graders said, are compared elsewhere.
  const name = Object.keys(metrics).find(
    (key) => !/^(learningRate$|parts\.|metrics\.)/.test(key) && metrics[key] !== numbers[key],
  );
  if (name === undefined) return await compareWeights(policy, manifest, work);
  const meaning = 'the step was computed from something else, or by another kind of processor';
  differs(`${name} ${metrics[name]}`, `${name} ${numbers[name]}`, meaning);
}

async function compareWeights({ trainer }: Policy, { step, digests }: BatchManifest, { plan, found }: Work): Promise<void> {
  const { run, model } = plan.settings;
  const scratch = temporaryFolder('trainyard-verify');
  try {
    const files = await savedFiles(trainer, join(scratch, 'model'), model);
    const folder = join(run, 'checkpoints', checkpointName(step));
    const onDisk = existsSync(folder) ? await digestsOf(folder) : undefined;
    const ours = onDisk && Object.fromEntries(Object.keys(files).map((name) => [name, onDisk[name] ?? '']));
    const labelled = onDisk && (await labelIn(folder)).files;
    const kept = [digests?.weights, ours && filesDigest(ours), labelled && filesDigest(labelled)].filter(
      (digest) => digest !== undefined,
    );
    if (kept.length > 0) found.counts.checkpoints++;
    const again = filesDigest(files);
    const other = kept.find((digest) => digest !== again);
    if (other === undefined) return;
    const meaning = 'these are not the weights that the rollouts of the run give';
    found.differs(`checkpoint of step ${step}`, `files ${short(other)}`, `files ${short(again)}`, meaning);
  } finally {
    await removeFolder(scratch);
  }
}

const short = (digest: string): string => digest.slice(0, 12);
