/**
 * Our Tinker client against SkyRL's Tinker server: its JAX backend on the CPU, with our base policy's folder as its base model.
 *
 * First the client's verbs, each seen to do what it says; then the demo task is learned through it. The server trains a LoRA adapter,
 * so the learning rate is not the embedded policy's. It compiles anew for every shape of a batch and decodes a batch until its longest
 * answer ends: hence the fixed batch sizes and the short limit on an answer.
 */
import { mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { RunEvent, Score, TrainDone } from '../../src/core/events.ts';
import type { Sample } from '../../src/core/types.ts';
import { openTinkerPolicy } from '../../src/engines/tinker/client/tinker-policy.ts';
import { loadRenderer } from '../../src/tokens/renderer.ts';
import { importanceSampling } from '../../src/training/losses.ts';
import { freePort, runProgram, startServer, TRAINYARD } from './child.ts';
import { cache, root } from './python-environment.ts';
import type { Report } from './report.ts';

const MODEL = join(root, 'models/base');
const FOLDER = join(cache, 'skyrl');
const LORA_RANK = 16;
const BACKEND = { max_lora_adapters: 3, max_lora_rank: LORA_RANK, train_micro_batch_size: 16, sample_max_num_sequences: 32 };
const CALL_TOKENS = 48;
/** Behind `trainyard train`, with the folders. */
const FLAGS = {
  '--engine': 'tinker',
  '--model': 'models/base',
  '--lora-rank': String(LORA_RANK),
  '--learning-rate': '8e-4',
  '--steps': '24',
  '--call-tokens': String(CALL_TOKENS),
  '--eval-every': '0',
};
const LEARN_LIMIT_MS = 40 * 60_000;
/** Of the 500: evaluating all of them takes longer than training. */
const HELD_OUT_TASKS = 100;
const START_LIMIT_MS = 180_000;
const INSTALL_LIMIT_MS = 30 * 60_000;
const LOGPROB_TOLERANCE = 1e-4;

export async function checkSkyrl(report: Report, python: string): Promise<void> {
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  // The server asks for no key; the client wants one.
  process.env['TINKER_API_KEY'] ??= 'tml-not-looked-at';
  await checkShipped(report);
  const port = await freePort();
  const baseURL = `http://127.0.0.1:${port}`;
  let server: AsyncDisposable | undefined;
  const isUp = await report.check('SkyRL’s server starts with models/base', async () => {
    server = await start(python, port, `${baseURL}/api/v1/healthz`);
    return `a LoRA adapter of rank ${LORA_RANK}, ${JSON.stringify(BACKEND)}`;
  });
  if (!isUp || server === undefined) return;
  await using _server = server;
  await report.check('log-probabilities of samples, of passes and of saved weights agree', () => checkVerbs(baseURL));
  await report.check('the demo task is learned through it', () => learn(report, baseURL));
}

function start(python: string, port: number, url: string): Promise<AsyncDisposable> {
  const flags = {
    '--base-model': MODEL,
    '--port': String(port),
    '--backend': 'jax',
    '--database-url': `sqlite:///${join(FOLDER, 'server.sqlite')}`,
    '--checkpoints-base': join(FOLDER, 'checkpoints'),
    '--backend-config': JSON.stringify(BACKEND),
  };
  const env = {
    JAX_PLATFORMS: 'cpu',
    HF_HUB_OFFLINE: '1',
    // What is compiled for one shape serves the next run too.
    JAX_COMPILATION_CACHE_DIR: join(cache, 'jax'),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS: '0.5',
  };
  const args = [join(root, 'src/engines/tinker/skyrl/skyrl_server.py'), ...Object.entries(flags).flat()];
  return startServer({ command: python, args, env, limitMs: START_LIMIT_MS }, url);
}

/** The version that `trainyard skyrl` installs, into a cache of its own. */
async function checkShipped(report: Report): Promise<void> {
  const port = await freePort();
  const baseURL = `http://127.0.0.1:${port}`;
  const sizes = ['--sequences', '32', '--rows', '16', '--context', '256', '--call-tokens', String(CALL_TOKENS)];
  const args = [...TRAINYARD.args, 'skyrl', '--model', MODEL, '--cpu', '--port', String(port), ...sizes];
  const env = { XDG_CACHE_HOME: join(cache, 'xdg') };
  await report.check('trainyard skyrl starts the version it ships with, and the same agrees there', async () => {
    await using _server = await startServer(
      { command: TRAINYARD.command, args, env, cwd: FOLDER, limitMs: INSTALL_LIMIT_MS },
      `${baseURL}/api/v1/healthz`,
    );
    await rm(join(FOLDER, 'saved'), { recursive: true, force: true });
    return await checkVerbs(baseURL);
  });
}

/** Samples of the served weights, scored by the trainer: at first, after a step and its publication, and after going back. */
async function checkVerbs(baseURL: string): Promise<string> {
  const renderer = await loadRenderer(MODEL);
  const model = { engine: 'tinker', model: MODEL, baseModel: undefined } as const;
  const settings = { ...model, threads: 1, seed: 1, baseURL, loraRank: LORA_RANK };
  const options = { warn: () => {}, stop: new AbortController().signal };
  await using policy = await openTinkerPolicy(settings, renderer.vocabSize, options);
  const { engine, trainer } = policy;
  const questions = ['What does a "Tokgel radio" cost?', 'How many "Tokgel radio" are left?', 'hello', 'What do 8 cost?'];
  const draw = (seed: number): Promise<Sample[]> =>
    Promise.all(
      questions.map(async (content, i) => {
        const promptIds = renderer.open([{ role: 'user', content }], []);
        const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: CALL_TOKENS };
        const { ids, logprobs } = await engine.sample({ promptIds, sampling, stopIds: renderer.stopIds, seed: seed + i });
        return sampleOf(promptIds, ids, logprobs);
      }),
    );
  const apart = async (samples: readonly Sample[]): Promise<number> => {
    const scored = await trainer.forward(samples);
    const own = samples.map(({ logprobs, mask }) => logprobs.filter((_, at) => mask[at] === 1));
    return Math.max(...own.flatMap((logprobs, i) => distances(logprobs, scored[i]!)));
  };

  const first = await draw(100);
  const atFirst = await apart(first);
  await mkdir(join(FOLDER, 'saved'));
  await trainer.save(join(FOLDER, 'saved'));
  await trainer.forwardBackward(first, importanceSampling());
  await trainer.optimStep({ learningRate: 1e-3, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 0 });
  await trainer.publish(1);
  const moved = await apart(first);
  const published = await apart(await draw(200));
  await trainer.load(join(FOLDER, 'saved'));
  const goneBack = await apart(first);
  const told = `samples and passes ${atFirst.toExponential(1)} apart, ${published.toExponential(1)} after a step and its publication, ${goneBack.toExponential(1)} after load; the step itself moved them by ${moved.toExponential(1)}`;
  const agree = [atFirst, published, goneBack].every((distance) => distance <= LOGPROB_TOLERANCE);
  if (!agree || !(moved > 10 * LOGPROB_TOLERANCE)) throw new Error(told);
  return told;
}

function sampleOf(promptIds: Int32Array, ids: Int32Array, logprobs: Float32Array): Sample {
  const [context, length] = [promptIds.length, promptIds.length + ids.length];
  return {
    ...{ temperature: 1, weight: 1, rolloutId: 'interop', groupId: 'interop' },
    tokens: Int32Array.of(...promptIds, ...ids),
    mask: new Uint8Array(length).fill(1, context),
    logprobs: Float32Array.of(...new Float32Array(context), ...logprobs),
    advantages: new Float32Array(length).fill(1, context),
    versions: new Int32Array(length),
  };
}

function distances(ours: Float32Array, theirs: Float32Array): readonly number[] {
  if (ours.length !== theirs.length) throw new Error(`${ours.length} log-probabilities were sampled, ${theirs.length} scored`);
  return Array.from(ours, (value, i) => Math.abs(value - theirs[i]!));
}

async function learn(report: Report, baseURL: string): Promise<string> {
  const tasks = (await readFile(join(root, 'examples/shop/held-out.jsonl'), 'utf8')).split('\n').slice(0, HELD_OUT_TASKS);
  const heldOut = join(FOLDER, 'held-out.jsonl');
  await writeFile(heldOut, `${tasks.join('\n')}\n`);
  const flags = { ...FLAGS, '--held-out': heldOut, '--run': join(FOLDER, 'run') };
  const args = ['train', 'examples/shop/agent.ts', ...Object.entries(flags).flat(), '--json'];
  report.note(`trainyard ${args.join(' ')}`);
  let done: TrainDone | undefined;
  const command = { command: TRAINYARD.command, args: [...TRAINYARD.args, ...args], cwd: root };
  await runProgram({ ...command, env: { TINKER_BASE_URL: baseURL }, limitMs: LEARN_LIMIT_MS }, (line) => {
    if (!line.startsWith('{')) return report.note(line);
    const event: RunEvent = JSON.parse(line);
    if (event.type === 'done' && 'ending' in event) done = event;
    tellOf(event, report);
  });
  if (done?.before == null || done.after == null) throw new Error('nothing was evaluated');
  const { steps, before, after } = done;
  const told = `${steps} steps, held-out success ${shown(before)} → ${shown(after)}`;
  if (after.success < 0.8 || after.success < before.success + 0.5) throw new Error(told);
  return told;
}

function tellOf(event: RunEvent, report: Report): void {
  if (event.type === 'warning') report.note(`warning ${event.code}: ${event.message}`);
  if (event.type === 'eval-end') {
    report.note(`held-out success ${event.when}: ${shown(event.score)} (${event.seconds.toFixed(0)} s)`);
  }
  if (event.type !== 'step-end') return;
  const { step, reward, rollouts, rolloutSeconds, trainSeconds, saveSeconds } = event;
  const seconds = (rolloutSeconds + trainSeconds + saveSeconds).toFixed(0);
  report.note(`step ${step}: mean reward ${reward.toFixed(2)} of ${rollouts} rollouts (${seconds} s)`);
}

function shown({ success, n }: Score): string {
  return `${(100 * success).toFixed(1)} % of ${n} tasks`;
}
