/**
 * The whole of it on one page: reinforcement learning of the triage agent, by hand, on the public pieces of the package.
 *
 *   npx node --conditions=trainyard-source examples/loop.ts [steps]
 *
 * One step: try each of a few tasks several times; see which tries did better than the others at the same task; make what
 * those said a little more likely; serve the new policy. There is nothing else to it. `trainyard train` does the same and takes
 * care of the rest: every rollout on disk before it counts, graders that can be killed, deadlines, checkpoints, a report.
 *
 * Read from the top; each function is explained by the one above it.
 */
import { fileURLToPath } from 'node:url';
import { BASE_MODEL, type Sample, type SamplingSettings, type Task, type Turn } from 'trainyard';
import { contextOf, EmbeddedModel, Gateway, listen, loadRenderer, ppo, readTasks, stitch } from 'trainyard/loop';
import agent from './triage/agent.ts';

const STEPS = Number(process.argv[2] ?? 60);
/** Tasks per step, and tries at each. */
const GROUPS = 8;
const TRIES = 8;

// ── the pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/** A small transformer that is sampled and trained in this process. It knows token ids and nothing about text. */
await using model = await EmbeddedModel.open({ dir: BASE_MODEL });

/** Conversations to token ids and back. */
const renderer = await loadRenderer(BASE_MODEL);

/** Speaks the OpenAI API to the agent and token ids to the model, and writes down every token as it was sampled. */
const gateway = new Gateway({ engine: model, renderer, modelName: 'policy' });
await using _listener = await listen(gateway);

const tasks = await readTasks(beside('triage/train.jsonl'));
const heldOut = await readTasks(beside('triage/held-out.jsonl'));

// ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

console.log(`held-out success before: ${percent(await evaluate('before'))}`);

for (let step = 1; step <= STEPS; step++) {
  const groups = await Promise.all(tasksOf(step).map((task) => tryTask(task, step)));
  const samples = groups.flatMap(samplesOf);
  if (samples.length > 0) await learn(samples);
  await model.publish(step);

  const rewards = groups.flat().map(({ reward }) => reward);
  console.log(`step ${step}: reward ${mean(rewards).toFixed(2)}, learned from ${samples.length} of ${rewards.length} rollouts`);
}

console.log(`held-out success after: ${percent(await evaluate('after'))}`);

/** The next tasks, from the beginning again when all were used. */
function tasksOf(step: number): Task[] {
  return Array.from({ length: GROUPS }, (_, place) => tasks[((step - 1) * GROUPS + place) % tasks.length]!);
}

// ── trying ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

/** One try of the agent at a task. */
interface Rollout {
  readonly rolloutId: string;
  readonly groupId: string;
  readonly turns: readonly Turn[];
  readonly reward: number;
}

/** The tries at one task are a group: they are compared with each other and with nothing else. */
function tryTask(task: Task, step: number): Promise<Rollout[]> {
  const groupId = `step-${step}-${task.id}`;
  return Promise.all(
    Array.from({ length: TRIES }, (_, place) => rollOut(task, groupId, `${groupId}-${place}`, { temperature: 1 })),
  );
}

/**
 * Runs the agent and grades what it returned. The agent gets the task without its answer, and a base URL of its own: what arrives
 * there is recorded as this rollout's. At temperature 1 it tries different things; at 0 it does what it thinks best.
 */
async function rollOut(
  task: Task,
  groupId: string,
  rolloutId: string,
  { temperature }: Pick<SamplingSettings, 'temperature'>,
): Promise<Rollout> {
  const signal = AbortSignal.timeout(60_000);
  const identity = { rolloutId, groupId, taskId: task.id, purpose: temperature > 0 ? 'train' : 'eval' } as const;
  const session = gateway.open({
    identity,
    roles: agent.roles,
    sampling: { temperature, topP: 1, topK: 0, maxTokens: 32 },
    limits: { turns: 4, tokens: 128, deadlineMs: 60_000 },
    seed: 1,
    signal,
  });
  const { ctx } = contextOf({ identity, task, workflow: agent, session, signal, seed: 1, now: Date.now });
  const output = await agent.run(ctx);
  return { rolloutId, groupId, turns: session.seal(), reward: output === task.answer ? 1 : 0 };
}

/** Share of the held-out tasks that the policy's most likely answers solve. */
async function evaluate(when: string): Promise<number> {
  const rollouts = await Promise.all(
    heldOut.map((task) => rollOut(task, `${when}-${task.id}`, `${when}-${task.id}`, { temperature: 0 })),
  );
  return mean(rollouts.map(({ reward }) => reward));
}

// ── learning ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

/**
 * A group as training rows: the tokens of each try with its advantage, which is how far its reward lies above or below the
 * group's mean, in standard deviations. Where all tries did equally well there is nothing to learn, and no row.
 */
function samplesOf(group: readonly Rollout[]): Sample[] {
  const rewards = group.map(({ reward }) => reward);
  const deviation = Math.sqrt(mean(rewards.map((reward) => (reward - mean(rewards)) ** 2)));
  if (deviation === 0) return [];
  return group.flatMap(({ turns, reward, rolloutId, groupId }) => {
    const advantage = (reward - mean(rewards)) / deviation;
    return stitch(turns, { advantageOf: () => advantage, weight: 1, rolloutId, groupId });
  });
}

/**
 * One gradient, one update. The loss is a mean over all sampled tokens; what the agent was told is in the rows too, as context,
 * and masked out. The clipping keeps a single batch from moving any token's probability far.
 */
async function learn(samples: readonly Sample[]): Promise<void> {
  const tokens = samples.reduce((sum, { mask }) => sum + mask.filter((sampled) => sampled === 1).length, 0);
  const weighted = samples.map((sample) => ({ ...sample, weight: 1 / tokens }));
  await model.forwardBackward(weighted, ppo({ clipLow: 0.2, clipHigh: 0.28 }));
  await model.optimStep({ learningRate: 5e-4, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 });
}

// ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────────────

function beside(name: string): string {
  return fileURLToPath(new URL(name, import.meta.url));
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}
