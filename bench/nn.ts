/**
 * Speed of the embedded model, by shape: matrix products, training with and without shared prefixes, sampling, and how both grow.
 *
 * Each number is the best of several rounds; the matrix product and the training it is compared with are measured in turn, so
 * that both meet the same machine. "Per CPU second" counts the time the process was running, not the time it waited for a core.
 */
import { loadavg } from 'node:os';
import type { Sample } from '../src/core/types.ts';
import { ARENA_START, GEMM_SCRATCH, planArena } from '../src/engines/embedded/arena.ts';
import { bestVariant, compileKernels } from '../src/engines/embedded/compile.ts';
import { defaultThreads, EmbeddedModel } from '../src/engines/embedded/embedded-model.ts';
import type { LlamaConfig } from '../src/engines/embedded/model/config.ts';
import { planLayout } from '../src/engines/embedded/model/config.ts';
import { loadKernels } from '../src/engines/embedded/wasm.ts';
import { ppo } from '../src/training/losses.ts';

const LARGER: LlamaConfig = {
  family: 'llama',
  ropeScaling: undefined,
  vocabSize: 512,
  hiddenSize: 128,
  intermediateSize: 344,
  layers: 4,
  heads: 4,
  kvHeads: 4,
  headDim: 32,
  contextLength: 256,
  rmsNormEps: 1e-5,
  ropeTheta: 10_000,
  tied: false,
};
/** The shape of the shipped base policy. */
const SMALL: LlamaConfig = { ...LARGER, hiddenSize: 64, intermediateSize: 176, layers: 2, headDim: 16, tied: true };

const ADAM = { learningRate: 1e-4, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };
const LOSS = ppo({ clipLow: 0.2, clipHigh: 0.28 });
const SEQUENCES = 64;
const LENGTH = 96;
const ROUNDS = 8;

interface Best {
  wallSeconds: number;
  cpuSeconds: number;
}

async function timed(best: Best, round: () => unknown): Promise<void> {
  const start = performance.now();
  const cpu = process.cpuUsage();
  await round();
  const { user, system } = process.cpuUsage(cpu);
  best.wallSeconds = Math.min(best.wallSeconds, (performance.now() - start) / 1000);
  best.cpuSeconds = Math.min(best.cpuSeconds, (user + system) / 1e6);
}

function none(): Best {
  return { wallSeconds: Number.POSITIVE_INFINITY, cpuSeconds: Number.POSITIVE_INFINITY };
}

/** One product on this thread: the output head over a few microbatches. Taller ones only measure how fast C is written. */
const GEMM = { M: 1536, N: 512, K: 128 };

function gemmRound(): () => void {
  const { M, N, K } = GEMM;
  const floats = GEMM_SCRATCH + M * K + N * K + M * N;
  const pages = Math.ceil((ARENA_START + floats * 4) / 65_536);
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages, shared: true });
  const kernels = loadKernels(compileKernels(bestVariant()), memory);
  kernels.setGemmScratch(ARENA_START);
  const a = ARENA_START + GEMM_SCRATCH * 4;
  const b = a + M * K * 4;
  const c = b + N * K * 4;
  new Float32Array(memory.buffer, a, M * K + N * K).forEach((_, i, values) => {
    values[i] = Math.sin(i);
  });
  return () => kernels.gemm(M, N, K, a, K, 1, b, 1, K, c, N, 0);
}

/** All but the first token trained; the first `shared` tokens are the same in every eight sequences, the rest in none. */
function batch(sequences: number, length: number, shared: number): Sample[] {
  return Array.from({ length: sequences }, (_, i) => {
    const mask = Uint8Array.from({ length }, (_unused, t) => (t > shared ? 1 : 0));
    const ones = Float32Array.from(mask);
    const stem = i >> 3;
    return {
      tokens: Int32Array.from({ length }, (_unused, t) => (t * 31 + (t < shared ? stem : i + 1) * 7) % 512),
      mask,
      logprobs: ones.map((m) => m * -6),
      advantages: ones,
      versions: new Int32Array(length),
      temperature: 1,
      weight: 1 / (sequences * length),
      rolloutId: `${i}`,
      groupId: '',
    };
  });
}

/** Floats of all weight matrices, the head included, without embedding table and norms. */
function matmulParameters(config: LlamaConfig): number {
  return planLayout(config).tensors.reduce((sum, { name, length }) => {
    const counts = !name.includes('norm') && (config.tied || !name.includes('embed'));
    return sum + (counts ? length : 0);
  }, 0);
}

const trainStep = (model: EmbeddedModel, samples: readonly Sample[]) => async () => {
  await model.forwardBackward(samples, LOSS);
  await model.optimStep(ADAM);
};

/** Sequences from prompts of one token each: nothing to share. */
const decodeRound = (model: EmbeddedModel) => async () => {
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: LENGTH - 1 };
  await Promise.all(
    Array.from({ length: SEQUENCES }, (_, seed) => model.sample({ promptIds: Int32Array.of(seed), sampling, stopIds: [], seed })),
  );
};

async function measure(config: LlamaConfig, threads: number) {
  await using model = await EmbeddedModel.create({ config, seed: 1, threads });
  const tokens = SEQUENCES * LENGTH;
  const multiply = gemmRound();
  const samples = batch(SEQUENCES, LENGTH, 0);
  const gemm = none();
  const train = none();
  const twice = none();
  const shared = none();
  const decode = none();
  for (let round = 0; round < ROUNDS; round++) {
    for (let i = 0; i < 20; i++) await timed(gemm, multiply);
    await timed(train, trainStep(model, samples));
    await timed(shared, trainStep(model, batch(SEQUENCES, LENGTH, 64)));
    await timed(decode, decodeRound(model));
    if (round < ROUNDS / 2) await timed(twice, trainStep(model, batch(2 * SEQUENCES, LENGTH, 0)));
  }
  const gemmGflops = (2 * GEMM.M * GEMM.N * GEMM.K) / gemm.wallSeconds / 1e9;
  const flops = 6 * matmulParameters(config) * tokens;
  const sampled = SEQUENCES * (LENGTH - 1);
  return {
    shape: `V=${config.vocabSize} D=${config.hiddenSize} L=${config.layers} H=${config.heads} F=${config.intermediateSize}`,
    gemmGflops: round(gemmGflops, 1),
    trainTokensPerSecond: Math.round(tokens / train.wallSeconds),
    trainEfficiency: round(flops / train.wallSeconds / 1e9 / (threads * gemmGflops), 3),
    trainTokensPerCpuSecond: Math.round(tokens / train.cpuSeconds),
    trainEfficiencyPerCpuSecond: round(flops / train.cpuSeconds / 1e9 / gemmGflops, 3),
    sharedPrefixTrainTokensPerSecond: Math.round(tokens / shared.wallSeconds),
    decodeTokensPerSecond: Math.round(sampled / decode.wallSeconds),
    decodeTokensPerCpuSecond: Math.round(sampled / decode.cpuSeconds),
    /** 1 = twice the sequences take twice the time. */
    timeLinearity: round(twice.wallSeconds / (2 * train.wallSeconds), 2),
  };
}

/** Memory to train sequences of 4,096 tokens over twice that for 2,048: at most 1 where it grows linearly. */
function memoryLinearity(): number {
  const bytes = (contextLength: number) => {
    const config = { ...LARGER, contextLength };
    // A worker's training regions lie one after another, before those for sampling.
    const plan = { config, layout: planLayout(config), lora: undefined, use: 'training', threads: 1 } as const;
    const { train, decode } = planArena(plan).workers[0]!;
    return decode.tokens - train!.tokens;
  };
  return round(bytes(4096) / (2 * bytes(2048)), 2);
}

function round(value: number, digits: number): number {
  return Number(value.toFixed(digits));
}

export async function run({ threads = defaultThreads() }: { readonly threads: number | undefined }) {
  const load = round(loadavg()[0]!, 1);
  console.log(`embedded model, ${bestVariant()} kernels, ${threads} threads, load ${load} at the start`);
  const larger = await measure(LARGER, threads);
  console.log(larger);
  const small = await measure(SMALL, threads);
  console.log(small);
  return { threads, load, wide: compileKernels(bestVariant()).wide, ...larger, memoryLinearity: memoryLinearity(), small };
}
