/**
 * Speed of the embedded model: `node bench/nn.ts [threads]`. Prints GEMM GFLOP/s, trained tokens/s and sampled tokens/s, best of
 * several rounds, for the shape of the shipped base policy and one larger.
 */

import type { Sample } from '../src/core/types.ts';
import { ARENA_START } from '../src/nn/arena.ts';
import { bestVariant, compileKernels } from '../src/nn/compile.ts';
import type { LlamaConfig } from '../src/nn/config.ts';
import { GEMM_SCRATCH } from '../src/nn/kernel-sizes.ts';
import { EmbeddedModel } from '../src/nn/policy.ts';
import { loadKernels } from '../src/nn/wasm.ts';
import { ppo } from '../src/trainer/losses.ts';

const SMALL: LlamaConfig = {
  vocabSize: 512,
  hiddenSize: 64,
  intermediateSize: 176,
  layers: 2,
  heads: 4,
  kvHeads: 4,
  headDim: 16,
  contextLength: 256,
  rmsNormEps: 1e-5,
  ropeTheta: 10_000,
  tied: true,
};
const LARGER: LlamaConfig = { ...SMALL, hiddenSize: 128, intermediateSize: 344, layers: 4, headDim: 32 };

const threads = process.argv[2] === undefined ? undefined : Number(process.argv[2]);
const ADAM = { learningRate: 1e-4, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };

/** Seconds of the fastest of several rounds. */
async function fastest(rounds: number, round: () => unknown): Promise<number> {
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < rounds; i++) {
    const start = performance.now();
    await round();
    best = Math.min(best, performance.now() - start);
  }
  return best / 1000;
}

async function gemm(): Promise<void> {
  const [M, N, K] = [1536, 512, 128];
  const memory = new WebAssembly.Memory({ initial: 1024, maximum: 1024, shared: true });
  const kernels = loadKernels(compileKernels(bestVariant()), memory);
  const a = ARENA_START + Math.ceil(GEMM_SCRATCH / 16) * 64;
  const b = a + M * K * 4;
  const c = b + N * K * 4;
  kernels.setGemmScratch(ARENA_START);
  const seconds = await fastest(60, () => kernels.gemm(M, N, K, a, K, 1, b, 1, K, c, N, 0));
  console.log(`gemm ${M}x${N}x${K}, ${bestVariant()}, one thread: ${((2 * M * N * K) / seconds / 1e9).toFixed(1)} GFLOP/s`);
}

/** 128 rollouts of about 116 tokens, a quarter of them sampled. */
function batch(): Sample[] {
  return Array.from({ length: 128 }, (_, i) => {
    const length = 100 + ((i * 13) % 33);
    const mask = Uint8Array.from({ length }, (_unused, t) => (t > 55 && t % 2 === 0 ? 1 : 0));
    const ones = Float32Array.from(mask);
    return {
      tokens: Int32Array.from({ length }, (_unused, t) => (t * 31 + i * 7) % 512),
      mask,
      logprobs: ones.map((m) => m * -6),
      advantages: ones,
      versions: new Int32Array(length),
      temperature: 1,
      weight: 1 / 4096,
      rolloutId: `${i}`,
      groupId: '',
    };
  });
}

async function model(config: LlamaConfig): Promise<void> {
  await using embedded = await EmbeddedModel.create({ config, seed: 1, threads });
  const name = `D=${config.hiddenSize} L=${config.layers}`;
  const samples = batch();
  const tokens = samples.reduce((sum, sample) => sum + sample.tokens.length, 0);
  const step = await fastest(8, async () => {
    await embedded.forwardBackward(samples, ppo({ clipLow: 0.2, clipHigh: 0.28 }));
    await embedded.optimStep(ADAM);
  });
  console.log(`${name} train: ${Math.round(tokens / step)} tokens/s (${tokens} tokens in ${(step * 1000).toFixed(0)} ms)`);

  let version = 0;
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 30 };
  const round = await fastest(8, async () => {
    await embedded.publish(++version);
    await Promise.all(
      Array.from({ length: 128 }, (_, i) => {
        // Sixteen prompts of 70 tokens, eight samples of each; the first forty tokens are common to all.
        const group = i >> 3;
        const promptIds = Int32Array.from({ length: 70 }, (_unused, t) => (t < 40 ? t : (t * 7 + group * 11) % 512));
        return embedded.sample({ promptIds, sampling, stopIds: [], seed: i, affinity: `${group}` });
      }),
    );
  });
  console.log(`${name} sample: ${Math.round((128 * 30) / round)} tokens/s (128 x 30 in ${(round * 1000).toFixed(0)} ms)`);
}

await gemm();
await model(SMALL);
await model(LARGER);
