/**
 * The embedded engine with a model of SmolLM2-135M's shape, beside PyTorch: `npm run bench -- llm --against torch [--python PATH]`.
 *
 * Random weights that both load, float32, a LoRA adapter on all linear layers, the same tokens, two threads each, in turn, so that other work
 * on the machine meets both; each number is the best of some rounds. Training is one step (forward, backward, AdamW of the adapter) and counts
 * all tokens; both compute logits of the trained half only. Decoding includes reading the prompts. A shared prefix is counted as often as it
 * occurs. Without `--against`: ours alone.
 */
import { spawn, spawnSync } from 'node:child_process';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { loadavg, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Sample } from '../src/core/types.ts';
import { EmbeddedModel } from '../src/engines/embedded/embedded-model.ts';
import { LORA_TARGETS } from '../src/engines/embedded/lora.ts';
import { type LlamaConfig, planLayout } from '../src/engines/embedded/model/config.ts';
import { writeCheckpoint } from '../src/engines/embedded/model/model-files.ts';
import { crossEntropy } from '../src/training/losses.ts';
import { preparePython } from '../test/interop/python-environment.ts';
import type { Flags } from './main.ts';

const CONFIG: LlamaConfig = {
  family: 'llama',
  vocabSize: 49_152,
  hiddenSize: 576,
  intermediateSize: 1536,
  layers: 30,
  heads: 9,
  kvHeads: 3,
  headDim: 64,
  contextLength: 8192,
  rmsNormEps: 1e-5,
  ropeTheta: 100_000,
  ropeScaling: undefined,
  tied: true,
};
const LORA = { rank: 16, alpha: 32, targets: LORA_TARGETS };
const ADAM = { learningRate: 1e-4, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
export const SEQUENCES = 32;
export const PROMPT = 64;
export const NEW = 64;
const PREFIX = 256;
const CONTEXT = 1024;
const ROUNDS = 3;
/** Sequences that PyTorch trains at once. All 32 would need 12 GB and are no faster. */
const TORCH_ROWS = 8;

export interface Took {
  readonly seconds: number;
  /** Computed by all threads. */
  readonly cpuSeconds: number;
}

async function timed(work: () => Promise<unknown>): Promise<Took> {
  const cpu = process.cpuUsage();
  const start = performance.now();
  await work();
  const { user, system } = process.cpuUsage(cpu);
  return { seconds: (performance.now() - start) / 1000, cpuSeconds: (user + system) / 1e6 };
}

export async function writeModel(dir: string): Promise<void> {
  const layout = planLayout(CONFIG);
  const weights = new Float32Array(layout.length);
  let state = 1;
  for (const { name, offset, length } of layout.tensors) {
    for (let i = offset; i < offset + length; i++) {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) | 0;
      weights[i] = name.includes('norm') ? 1 : (state / 2 ** 31) * 0.035;
    }
  }
  await mkdir(dir);
  await writeCheckpoint(dir, { config: CONFIG, source: {}, layout, weights, variant: 'plain' }, undefined);
}

export function openModel(dir: string, threads: number): Promise<EmbeddedModel> {
  return EmbeddedModel.open({ dir, threads, context: CONTEXT, use: 'training', lora: LORA });
}

let drawn = 0;
/** Sequences that have not been before, so that no cache knows them; their first `shared` tokens are the same in all. */
export function sequences(count: number, length: number, shared = 0): Int32Array[] {
  const token = (of: number, t: number) => (Math.imul(of * 8191 + t + 1, 2_654_435_761) >>> 8) % CONFIG.vocabSize;
  const first = drawn;
  drawn += count + 1;
  return Array.from({ length: count }, (_, i) =>
    Int32Array.from({ length }, (_unused, t) => token(t < shared ? first : first + i + 1, t)),
  );
}

/** The last tokens of each are trained. */
function samplesOf(rows: readonly Int32Array[]): Sample[] {
  return rows.map((tokens, i) => {
    const mask = Uint8Array.from(tokens, (_, t) => (t >= tokens.length - NEW ? 1 : 0));
    const advantages = Float32Array.from(mask);
    const logprobs = Float32Array.from(mask, (m) => -10 * m);
    const versions = Int32Array.from(mask);
    const weight = 1 / (rows.length * NEW);
    return { tokens, mask, logprobs, advantages, versions, temperature: 1, weight, rolloutId: `${i}`, groupId: '' };
  });
}

export function train(model: EmbeddedModel, rows: readonly Int32Array[]): Promise<Took> {
  const samples = samplesOf(rows);
  return timed(async () => {
    await model.forwardBackward(samples, crossEntropy());
    await model.optimStep(ADAM);
  });
}

/** No token ends a sequence. */
export function generate(model: EmbeddedModel, prompts: readonly Int32Array[], maxTokens: number): Promise<Took> {
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens };
  return timed(() => Promise.all(prompts.map((promptIds, seed) => model.sample({ promptIds, sampling, stopIds: [], seed }))));
}

type Ask = <Answer = Took>(verb: string, given: Readonly<Record<string, unknown>>) => Promise<Answer>;

/** PyTorch, in one process for the whole run. It must give the same log-probabilities, or there is nothing to compare. */
async function openTorch(model: EmbeddedModel, python: string, base: string, threads: number): Promise<Ask> {
  const env = { ...process.env, OMP_NUM_THREADS: `${threads}`, HF_HUB_OFFLINE: '1' };
  const script = join(import.meta.dirname, 'llm_torch.py');
  const { stdin, stdout } = spawn(python, [script], { stdio: ['pipe', 'pipe', 'inherit'], env });
  const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
  const ask: Ask = async (verb, given) => {
    stdin.write(`${JSON.stringify({ do: verb, ...given })}\n`);
    const { value, done } = await lines.next();
    if (done) throw new Error(`PyTorch ended during ${verb}; its error is above`);
    return JSON.parse(value);
  };
  const adapter = `${base}-adapter`;
  await mkdir(adapter);
  await model.save(adapter);
  const { version } = await ask<{ version: string }>('open', { base, adapter, threads, adam: ADAM });
  const rows = sequences(2, PROMPT + NEW);
  const ours = await model.forward(samplesOf(rows));
  const { logprobs } = await ask<{ logprobs: number[][] }>('score', { tokens: plain(rows), trained: NEW });
  const apart = Math.max(...logprobs.flatMap((row, i) => row.map((value, k) => Math.abs(value - ours[i]![k]!))));
  console.log(`PyTorch ${version}: log-probabilities differ by at most ${apart.toExponential(1)}`);
  if (!(apart < 1e-3)) throw new Error(`log-probabilities differ by ${apart}, expected less than 0.001`);
  return ask;
}

function plain(rows: readonly Int32Array[]): number[][] {
  return rows.map((row) => [...row]);
}

interface Measurement {
  readonly name: 'train' | 'prefill' | 'decode' | 'sharedPrefixTrain';
  readonly tokens: number;
  readonly rows: () => Int32Array[];
  readonly ours: (model: EmbeddedModel, rows: readonly Int32Array[]) => Promise<Took>;
  readonly theirs: readonly [verb: string, given?: Readonly<Record<string, number>>];
}

const MEASUREMENTS: readonly Measurement[] = [
  ...[['train', 0] as const, ['sharedPrefixTrain', PREFIX] as const].map(([name, shared]): Measurement => {
    const length = shared + PROMPT + NEW;
    const rows = () => sequences(SEQUENCES, length, shared);
    return { name, tokens: SEQUENCES * length, rows, ours: train, theirs: ['train', { trained: NEW, rows: TORCH_ROWS }] };
  }),
  ...[['prefill', 1, PROMPT] as const, ['decode', NEW, NEW] as const].map(([name, limit, counted]): Measurement => {
    const rows = () => sequences(SEQUENCES, PROMPT);
    const ours: Measurement['ours'] = (model, prompts) => generate(model, prompts, limit);
    return { name, tokens: SEQUENCES * counted, rows, ours, theirs: name === 'prefill' ? [name] : [name, { new: NEW }] };
  }),
];

/** Ours and theirs in turn. Returns our speed and its ratio to theirs. */
async function measure(model: EmbeddedModel, torch: Ask | undefined, { name, tokens, rows, ours, theirs }: Measurement) {
  const took: { ours: Took[]; theirs: Took[] } = { ours: [], theirs: [] };
  // The longest one is measured less often.
  for (let round = name === 'sharedPrefixTrain' ? 1 : 0; round < ROUNDS; round++) {
    const drawn = rows();
    took.ours.push(await ours(model, drawn));
    if (torch !== undefined) took.theirs.push(await torch(theirs[0], { ...theirs[1], tokens: plain(drawn) }));
  }
  const speed = (all: readonly Took[], unit: keyof Took) => tokens / Math.min(...all.map((one) => one[unit]));
  for (const [who, all] of Object.entries(took)) {
    const [perSecond, perCpu] = [speed(all, 'seconds'), speed(all, 'cpuSeconds')].map(Math.round);
    if (all.length > 0) console.log(`${name}, ${who}: ${perSecond} tokens/s, ${perCpu} per CPU second; load ${load()}`);
  }
  const ratio = torch && Number((speed(took.ours, 'seconds') / speed(took.theirs, 'seconds')).toFixed(3));
  return { ratio, perSecond: Math.round(speed(took.ours, 'seconds')) };
}

/** In a process of its own, which also writes the model: neither shows in our peak of memory. */
function profile(folder: string): number {
  const script = join(import.meta.dirname, 'llm-profile.ts');
  const args = ['--conditions=trainyard-source', '--import', script, script, folder];
  const { status, stdout } = spawnSync(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'], encoding: 'utf8' });
  if (status !== 0) throw new Error(`the profile ended with ${status}; its error is above`);
  const lines = stdout.trimEnd().split('\n');
  console.log(lines.slice(0, -1).join('\n'));
  return Number(Number(lines.at(-1)).toFixed(3));
}

function findPython(): string {
  const prepared = preparePython('client', (line) => console.log(line));
  if (prepared.kind === 'ready') return prepared.python;
  throw new Error(`${prepared.why}; name a Python that has torch, transformers and peft with --python`);
}

function load(): string {
  return loadavg()[0]!.toFixed(1);
}

export async function run({ threads = 2, against, python }: Flags) {
  if (against !== undefined && against !== 'torch') throw new Error(`--against is ${against}, expected torch`);
  const interpreter = against && (python ?? findPython());
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-bench-llm-'));
  try {
    console.log(`SmolLM2-135M's shape, LoRA of rank ${LORA.rank}, ${threads} threads, load ${load()} at the start`);
    const base = join(folder, 'base');
    const matmulShare = profile(base);
    await using model = await openModel(base, threads);
    // Also makes B other than zero.
    await train(model, sequences(SEQUENCES, PROMPT + NEW));
    await model.publish(1);
    const torch = interpreter && (await openTorch(model, interpreter, base, threads));
    if (torch) await torch('train', { tokens: plain(sequences(TORCH_ROWS, PROMPT + NEW)), trained: NEW, rows: TORCH_ROWS });
    const found: Partial<Record<Measurement['name'], Awaited<ReturnType<typeof measure>>>> = {};
    for (const one of MEASUREMENTS) found[one.name] = await measure(model, torch || undefined, one);
    for (const count of [SEQUENCES / 2, SEQUENCES, 2 * SEQUENCES]) {
      const { seconds } = await train(model, sequences(count, PROMPT + NEW));
      console.log(
        `cost linear in tokens: ${count} sequences are trained at ${Math.round((count * (PROMPT + NEW)) / seconds)} tokens/s`,
      );
    }
    return {
      trainRatio: found.train!.ratio,
      prefillRatio: found.prefill!.ratio,
      decodeRatio: found.decode!.ratio,
      sharedPrefixTrainRatio: found.sharedPrefixTrain!.ratio,
      trainTokensPerSecond: found.train!.perSecond,
      decodeTokensPerSecond: found.decode!.perSecond,
      matmulShare,
      peakMB: Math.round(process.resourceUsage().maxRSS / 1024),
    };
  } finally {
    await rm(folder, { recursive: true });
  }
}
