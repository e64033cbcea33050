/**
 * Weights between Trainyard and transformers, adapters between Trainyard and peft: what one saves, the other loads, and both give the same
 * log-probabilities.
 *
 * Compared are the tokens of whole conversations, and after some prompts every token of the vocabulary, which fixes the logits up to
 * the constant that softmax takes away. Tolerance: 1e-4, in float32.
 */
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { renderConversation } from '../../models/conversation-text.ts';
import { CLEAN, drawConversation } from '../../models/pretraining-data.ts';
import { seededRandom } from '../../models/random.ts';
import type { Sample } from '../../src/core/types.ts';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { loadTokenizer } from '../../src/tokens/tokenizer.ts';
import { crossEntropy } from '../../src/training/losses.ts';
import { runProgram } from './child.ts';
import { cache, root } from './python-environment.ts';
import type { Report } from './report.ts';

const BASE = join(root, 'models/base');
const TOLERANCE = 1e-4;
const CONVERSATIONS = 16;
/** Rows whose every next token is compared. */
const WHOLE_ROWS = 3;
const STEPS = 5;
const ADAM = { learningRate: 1e-3, beta1: 0.9, beta2: 0.98, epsilon: 1e-8, weightDecay: 0, maxGradNorm: 1 };

const LLAMA3_ROPE = {
  ...{ rope_type: 'llama3', rope_theta: 50_000, factor: 8, low_freq_factor: 1, high_freq_factor: 4 },
  original_max_position_embeddings: 64,
};
/** Adapters are exchanged over models in several files. */
const SHARDED = { max_shard_size: '100KB', adapted: true } as const;
const MODELS: readonly (Shape & { readonly name: string; readonly adapted?: true })[] = [
  { name: 'Llama, grouped queries, own output head', ...shape('llama') },
  { name: 'Llama, one key head, tied embeddings', ...shape('llama'), num_key_value_heads: 1, tie_word_embeddings: true },
  { name: 'Llama, grouped queries, bfloat16 file', ...shape('llama'), dtype: 'bfloat16' },
  { name: 'Llama 3, scaled rotary positions', ...shape('llama'), rope_parameters: LLAMA3_ROPE },
  {
    name: 'Llama 3, scaled rotary positions, float16 files',
    ...{ ...shape('llama'), tie_word_embeddings: true, rope_parameters: LLAMA3_ROPE, dtype: 'float16', ...SHARDED },
  },
  { name: 'Qwen2, tied embeddings', ...shape('qwen2'), tie_word_embeddings: true },
  { name: 'Qwen2, own output head, bfloat16 files', ...shape('qwen2'), dtype: 'bfloat16', ...SHARDED },
  { name: 'Qwen3, tied embeddings, several files', ...shape('qwen3'), tie_word_embeddings: true, ...SHARDED },
  { name: 'Qwen3, own output head, bfloat16 file', ...shape('qwen3'), dtype: 'bfloat16' },
];
const ALL_MODULES = ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'] as const;
const LORA = { rank: 6, alpha: 9, targets: ALL_MODULES };

export async function checkTransformers(report: Report, python: string): Promise<void> {
  const folder = join(cache, 'transformers');
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const peer = new Transformers(python, folder);
  const conversations = await drawRows();

  await report.check('transformers renders and tokenises a conversation with models/base to the same ids', () =>
    compareChat(peer, conversations),
  );
  await report.check(`transformers loads weights saved after ${STEPS} steps of training`, async () => {
    await using model = await EmbeddedModel.open({ dir: BASE });
    const rows = conversations.map(({ ids }) => ids);
    const losses: number[] = [];
    for (let step = 0; step < STEPS; step++) {
      losses.push((await model.forwardBackward(rows.map(sampleOf), crossEntropy())).loss);
      await model.optimStep(ADAM);
    }
    if (losses.at(-1)! >= losses[0]!) throw new Error(`the loss did not fall: ${losses.join(', ')}`);
    const dir = join(folder, 'saved');
    await mkdir(dir);
    await model.save(dir);
    return await compare(peer, model, dir, rows);
  });
  const rows = drawTokens();
  for (const { name, adapted, ...settings } of MODELS) {
    const dir = join(folder, name.replaceAll(/[^A-Za-z0-9]+/g, '-'));
    const opened = await report.check(`Trainyard opens a model saved by transformers: ${name}`, async () => {
      await peer.make(dir, { ...SMALL, ...settings });
      const files = (await readdir(dir)).filter((file) => file.endsWith('.safetensors')).length;
      if (files > 1 !== (settings.max_shard_size !== undefined)) throw new Error(`transformers wrote ${files} files of weights`);
      await using model = await EmbeddedModel.open({ dir });
      return await compare(peer, model, dir, rows);
    });
    if (opened && adapted) await checkAdapters(report, peer, { name, base: dir, rows });
  }
}

interface Base {
  readonly name: string;
  readonly base: string;
  readonly rows: readonly Int32Array[];
}

async function checkAdapters(report: Report, peer: Transformers, { name, base, rows }: Base): Promise<void> {
  await report.check(`peft loads an adapter saved after ${STEPS} steps of training: ${name}`, async () => {
    await using model = await EmbeddedModel.open({ dir: base, lora: LORA });
    const before = await model.forward(rows.map(sampleOf));
    for (let step = 0; step < STEPS; step++) {
      await model.forwardBackward(rows.map(sampleOf), crossEntropy());
      await model.optimStep({ ...ADAM, learningRate: 0.01 });
    }
    const moved = furthestApart(await model.forward(rows.map(sampleOf)), before);
    if (moved < 0.1) throw new Error(`training moved log-probabilities by ${moved}: nothing is shown`);
    const dir = `${base}-adapter`;
    await mkdir(dir);
    await model.save(dir);
    return `${await compare(peer, model, dir, rows)}; training moved them by ${moved.toFixed(1)}`;
  });
  const some = ['q_proj', 'v_proj', 'down_proj'];
  for (const [told, target_modules] of Object.entries({ 'all modules': ALL_MODULES, 'some modules': some })) {
    await report.check(`Trainyard opens an adapter saved by peft, ${told}: ${name}`, async () => {
      const dir = `${base}-peft-${told.replace(' ', '-')}`;
      await peer.adapt(dir, { base, seed: 3, r: 5, lora_alpha: 8, target_modules });
      await using model = await EmbeddedModel.open({ dir });
      await using bare = await EmbeddedModel.open({ dir: base, lora: LORA });
      const moved = furthestApart(await model.forward(rows.map(sampleOf)), await bare.forward(rows.map(sampleOf)));
      return `${await compare(peer, model, dir, rows)}; ${moved.toFixed(1)} from the base`;
    });
  }
}

function furthestApart(a: readonly Float32Array[], b: readonly Float32Array[]): number {
  return Math.max(...a.flatMap((row, i) => Array.from(row, (value, k) => Math.abs(value - b[i]![k]!))));
}

function drawTokens(): Int32Array[] {
  const random = seededRandom(7);
  return Array.from({ length: 8 }, (_, i) =>
    Int32Array.from({ length: 20 + 25 * i }, () => Math.floor(random() * SMALL.vocab_size)),
  );
}

interface Shape {
  readonly model_type: string;
  readonly num_key_value_heads: number;
  readonly tie_word_embeddings: boolean;
  readonly dtype: string;
  readonly head_dim?: number;
  readonly rope_parameters?: object;
  /** For several files of weights. */
  readonly max_shard_size?: string;
}

/** Qwen3's heads are wider than its hidden size would make them. */
function shape(model_type: string): Shape {
  const heads = { num_key_value_heads: 2, ...(model_type === 'qwen3' && { head_dim: 24 }) };
  return { model_type, ...heads, tie_word_embeddings: false, dtype: 'float32' };
}

/** Large initial weights, so that distributions are far from uniform and a mistake shows. */
const SMALL = {
  seed: 5,
  vocab_size: 320,
  hidden_size: 64,
  intermediate_size: 160,
  num_hidden_layers: 3,
  num_attention_heads: 4,
  max_position_embeddings: 256,
  rope_parameters: { rope_type: 'default', rope_theta: 50_000 },
  rms_norm_eps: 1e-6,
  initializer_range: 0.15,
};

interface Row {
  readonly conversation: ReturnType<typeof drawConversation>;
  readonly ids: Int32Array;
}

async function drawRows(): Promise<readonly Row[]> {
  const tokenizer = await loadTokenizer(BASE);
  const random = seededRandom(23);
  return Array.from({ length: CONVERSATIONS }, () => {
    const conversation = drawConversation(random, CLEAN);
    const text = renderConversation(conversation)
      .map((piece) => piece.text)
      .join('');
    return { conversation, ids: tokenizer.encodeRendered(text) };
  });
}

async function compareChat(peer: Transformers, rows: readonly Row[]): Promise<string> {
  const theirs = await peer.chat(
    BASE,
    rows.map(({ conversation: { messages, tools } }) => ({ messages, tools })),
  );
  rows.forEach(({ ids }, i) => {
    if (theirs[i]!.join() !== ids.join()) throw new Error(`ids differ: ours ${ids.join()}; theirs ${theirs[i]!.join()}`);
  });
  return `${rows.length} conversations`;
}

async function compare(peer: Transformers, model: EmbeddedModel, dir: string, rows: readonly Int32Array[]): Promise<string> {
  const ours = await model.forward(rows.map(sampleOf));
  const theirs = await peer.logprobs(dir, rows, WHOLE_ROWS);
  let furthest = 0;
  let tokens = 0;
  const see = (a: Float32Array, b: readonly number[]): void => {
    if (a.length !== b.length) throw new Error(`${a.length} log-probabilities here, ${b.length} there`);
    a.forEach((value, i) => {
      const apart = Math.abs(value - b[i]!);
      // Written so that NaN is a failure.
      if (!(apart <= TOLERANCE)) throw new Error(`log-probability ${i} is ${value} here, ${b[i]} there: ${apart} apart`);
      furthest = Math.max(furthest, apart);
      tokens++;
    });
  };
  ours.forEach((logprobs, i) => {
    see(logprobs, theirs.next[i]!);
  });
  for (const [i, whole] of theirs.whole.entries()) see(await distribution(model, rows[i]!), whole);
  return `${tokens} log-probabilities, ${furthest.toExponential(1)} apart at most`;
}

/** Log-probabilities of every token after a row: one sample for each, of which only the last token is looked at. */
async function distribution(model: EmbeddedModel, row: Int32Array): Promise<Float32Array> {
  const prefix = row.subarray(0, model.contextLength - 1);
  const samples = Array.from({ length: model.vocabSize }, (_, id) => {
    const sample = sampleOf(Int32Array.from([...prefix, id]));
    return { ...sample, mask: sample.mask.fill(0, 0, -1) };
  });
  const logprobs = await model.forward(samples);
  return Float32Array.from(logprobs, (one) => one[0]!);
}

/** A row of which every token but the first is trained. */
function sampleOf(tokens: Int32Array): Sample {
  const { length } = tokens;
  return {
    ...{ tokens, temperature: 1, weight: 1, rolloutId: 'interop', groupId: 'interop' },
    mask: new Uint8Array(length).fill(1).fill(0, 0, 1),
    logprobs: new Float32Array(length),
    advantages: new Float32Array(length).fill(1 / length).fill(0, 0, 1),
    versions: new Int32Array(length),
  };
}

interface Logprobs {
  /** For each row, of its every token but the first. */
  readonly next: readonly (readonly number[])[];
  /** For the first rows, of every token that may follow. */
  readonly whole: readonly (readonly number[])[];
}

/** The Python side; values travel as JSON files. */
class Transformers {
  readonly #python: string;
  readonly #folder: string;

  constructor(python: string, folder: string) {
    this.#python = python;
    this.#folder = folder;
  }

  async make(dir: string, settings: object): Promise<void> {
    await this.#run('make', dir, settings);
  }

  async adapt(dir: string, settings: object): Promise<void> {
    await this.#run('adapt', dir, settings);
  }

  chat(dir: string, conversations: readonly object[]): Promise<readonly (readonly number[])[]> {
    return this.#answer('chat', dir, conversations);
  }

  logprobs(dir: string, rows: readonly Int32Array[], whole: number): Promise<Logprobs> {
    return this.#answer('logprobs', dir, { rows: rows.map((row) => [...row]), whole });
  }

  async #answer<T>(verb: string, dir: string, input: unknown): Promise<T> {
    const target = join(this.#folder, 'out.json');
    await this.#run(verb, dir, input, target);
    return JSON.parse(await readFile(target, 'utf8')) as T;
  }

  async #run(verb: string, dir: string, input: unknown, ...target: readonly string[]): Promise<void> {
    const source = join(this.#folder, 'in.json');
    await writeFile(source, JSON.stringify(input));
    const args = [join(import.meta.dirname, 'transformers_check.py'), verb, dir, source, ...target];
    await runProgram({ command: this.#python, args, env: { HF_HUB_OFFLINE: '1' }, limitMs: 180_000 });
  }
}
