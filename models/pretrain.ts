/**
 * Makes the base policy from nothing: `npm run pretrain -- [--out DIR] [--seed N]`.
 *
 * Tokenizer, random weights, then two phases of next-token prediction on generated conversations, on the assistant's tokens
 * only. Phase A shows the job done well: it teaches the format, the tools and copying. Phase B shows it done badly: it makes
 * the policy weak in a way that reinforcement learning can undo, because every right decision is still sampled now and then.
 * Ends with a model folder in Hugging Face layout and a README that says how it was made and how good it is.
 *
 * Same seed, same model. Takes minutes on two cores.
 */
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { TrainyardError } from '../src/core/errors.ts';
import type { AdamSettings } from '../src/core/policy.ts';
import { EmbeddedModel } from '../src/engines/embedded/embedded-model.ts';
import type { LlamaConfig } from '../src/engines/embedded/model/config.ts';
import { createRenderer, type Renderer } from '../src/tokens/renderer.ts';
import { loadTokenizer } from '../src/tokens/tokenizer.ts';
import { crossEntropy } from '../src/training/losses.ts';
import { type Measurement, modelCard, type PhaseReport, type PhaseTraining, type Success } from './model-card.ts';
import { CLEAN, type Faults, NOISY, PretrainingData } from './pretraining-data.ts';
import { attemptAll, describeAll, heldOutShop, successRate } from './shop-rollouts.ts';
import { deskSuccess, triageSuccess } from './small-rollouts.ts';
import { CONTEXT_LENGTH, trainTokenizer, VOCABULARY_SIZE } from './train-tokenizer.ts';

const SHAPE: LlamaConfig = {
  family: 'llama',
  ropeScaling: undefined,
  vocabSize: VOCABULARY_SIZE,
  hiddenSize: 64,
  intermediateSize: 176,
  layers: 2,
  heads: 4,
  kvHeads: 4,
  headDim: 16,
  contextLength: CONTEXT_LENGTH,
  rmsNormEps: 1e-5,
  ropeTheta: 10_000,
  tied: true,
};

interface Phase {
  readonly name: string;
  readonly faults: Faults;
  readonly steps: number;
  readonly warmUpSteps: number;
  /** Falls linearly from the first to the second. */
  readonly learningRate: readonly [number, number];
}

/** Phase A ends when copying is near perfect: what is missing there, reinforcement learning cannot add. */
const PHASES: readonly Phase[] = [
  { name: 'A (clean)', faults: CLEAN, steps: 1_700, warmUpSteps: 30, learningRate: [4e-3, 4e-4] },
  { name: 'B (noisy)', faults: NOISY, steps: 450, warmUpSteps: 0, learningRate: [1.25e-3, 1.25e-4] },
];

const BATCH = 96;
const REPORT_EVERY = 100;
const ADAM: Omit<AdamSettings, 'learningRate'> = { beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0.01, maxGradNorm: 1 };

/** Held-out tasks of each example that measure the policy; not those in its held-out.jsonl. */
const MEASURED = 500;
const MEASURING_SEED = 4_242;

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      out: { type: 'string', default: fileURLToPath(new URL('./base', import.meta.url)) },
      seed: { type: 'string', default: '1' },
    },
  });
  const seed = Number(values.seed);
  if (!Number.isSafeInteger(seed) || seed < 0) {
    throw new TrainyardError('USAGE', `--seed is ${values.seed}, expected a whole number`);
  }
  await pretrain(values.out, seed);
}

async function pretrain(out: string, seed: number): Promise<void> {
  mkdirSync(out, { recursive: true });
  writeTokenizer(out, seed);
  const tokenizer = await loadTokenizer(out);
  const renderer = createRenderer(tokenizer);
  const data = new PretrainingData(tokenizer, seed);
  await using model = await EmbeddedModel.create({ config: SHAPE, seed });

  const phases: PhaseReport[] = [];
  for (const phase of PHASES) {
    const training = await runPhase(model, data, phase);
    phases.push({ ...training, ...(await measure(model, renderer)) });
  }
  await writeWeights(model, out);
  const parameters = model.weights().length;
  const facts = { seed, shape: SHAPE, parameters, batch: BATCH, measured: MEASURED, phases };
  writeFileSync(join(out, 'README.md'), modelCard(facts));
}

function writeTokenizer(out: string, seed: number): void {
  const { tokenizer, tokenizerConfig } = trainTokenizer(seed);
  writeFileSync(join(out, 'tokenizer.json'), JSON.stringify(tokenizer));
  writeFileSync(join(out, 'tokenizer_config.json'), `${JSON.stringify(tokenizerConfig, null, 1)}\n`);
}

/** Trains for one phase; the optimizer goes on where the phase before left it. */
async function runPhase(model: EmbeddedModel, data: PretrainingData, phase: Phase): Promise<PhaseTraining> {
  const started = performance.now();
  let tokens = 0;
  const losses: number[] = [];
  for (let step = 0; step < phase.steps; step++) {
    const batch = data.draw(phase.faults, BATCH);
    const { loss } = await model.forwardBackward(batch, crossEntropy());
    await model.optimStep({ ...ADAM, learningRate: learningRateAt(phase, step) });
    tokens += batch.reduce((sum, sample) => sum + sample.tokens.length, 0);
    losses.push(loss);
    if ((step + 1) % REPORT_EVERY === 0) report(phase, losses, started);
  }
  return { name: phase.name, steps: phase.steps, tokens, seconds: secondsSince(started), loss: mean(losses.slice(-20)) };
}

function learningRateAt({ learningRate: [first, last], steps, warmUpSteps }: Phase, step: number): number {
  const warmth = warmUpSteps === 0 ? 1 : Math.min(1, (step + 1) / warmUpSteps);
  return warmth * (first + (last - first) * (step / steps));
}

async function measure(model: EmbeddedModel, renderer: Renderer): Promise<Measurement> {
  await model.publish(model.policyVersion + 1);
  const shop = heldOutShop(MEASURING_SEED, MEASURED);
  const shopAttempts = (temperature: number) => attemptAll(model, renderer, shop, temperature);
  const player = (temperature: number) => ({ engine: model, renderer, temperature });
  const solved: Readonly<Record<string, (temperature: number) => Promise<number>>> = {
    shop: async (temperature) => successRate(await shopAttempts(temperature)),
    triage: (temperature) => triageSuccess(player(temperature), MEASURING_SEED, MEASURED),
    desk: (temperature) => deskSuccess(player(temperature), MEASURING_SEED, MEASURED),
  };
  const successes: Success[] = [];
  for (const [example, share] of Object.entries(solved)) {
    const greedy = await share(0);
    const sampled = await share(1);
    console.log(`held-out success, ${example}: greedy ${greedy.toFixed(3)}, temperature 1 ${sampled.toFixed(3)}`);
    successes.push({ example, greedy, sampled });
  }
  return { successes, shopEndings: describeAll(await shopAttempts(1)) };
}

/** Only the weights: whoever trains this model starts with an optimizer of his own. */
async function writeWeights(model: EmbeddedModel, out: string): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'pretrain-'));
  try {
    await model.save(folder);
    for (const name of ['config.json', 'model.safetensors']) cpSync(join(folder, name), join(out, name));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function report(phase: Phase, losses: readonly number[], started: number): void {
  const loss = mean(losses.slice(-20)).toFixed(4);
  console.log(`phase ${phase.name} step ${losses.length}/${phase.steps} loss ${loss} ${secondsSince(started).toFixed(0)} s`);
}

function secondsSince(started: number): number {
  return (performance.now() - started) / 1_000;
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

await main();
