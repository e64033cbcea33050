/**
 * The weights of a server: its one base model, the saved weights, and the routes that inspect both. On disk,
 * `<state>/<model>/weights/<name>` holds training state, `…/sampler_weights/<name>` weights to sample from, and `…/unnamed/<number>`
 * sampler weights without a name. Each is a model folder with a label, `saved.json`. A save is written to a temporary folder, synced, then
 * renamed, so a crash never leaves partial weights. Opening the state folder removes unfinished saves and unnamed weights. Callers must
 * ensure that only one process uses it.
 */
import { createHash, randomUUID } from 'node:crypto';
import { copyFile, mkdir, readdir, readFile, realpath, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../../../core/errors.ts';
import { parsedJson } from '../../../core/json.ts';
import { jsonReply } from '../../../http/message.ts';
import { sync } from '../../../store/files.ts';
import { loadTokenizer, type Tokenizer } from '../../../tokens/tokenizer.ts';
import { TOKENIZER_FILES } from '../../checkpoint.ts';
import { EmbeddedModel } from '../../embedded/embedded-model.ts';
import { hubNameOf } from '../../model-path.ts';
import type { WeightsKind, WeightsPath } from '../wire/tinker-messages.ts';
import { formatWeightsPath, isWeightsName, parseWeightsPath, weightsInfoRequest } from '../wire/tinker-messages.ts';
import { invalid, type Routes, readRequest, refused } from './requests.ts';

export interface Weights {
  /** Unique for each save, even under the same name. */
  readonly id: string;
  readonly folder: string;
  /** Throws unless the folder still holds these weights. Callers must check again after loading them. */
  check(): Promise<void>;
}

/** A model folder, addressed by its name or its path. Every model in training starts as a copy of it. */
export interface BaseModel {
  readonly name: string;
  readonly folder: string;
  readonly shape: { readonly vocabSize: number; readonly contextLength: number };
  readonly weights: Weights;
  /** Undefined if the folder has no usable tokenizer. Requests carry ids; only stop texts need a tokenizer. */
  readonly tokenizer: Tokenizer | undefined;
  /** SHA-256 of tokenizer.json, so that clients can check that they use the same one. */
  readonly tokenizerDigest: string | undefined;
  open(): Promise<EmbeddedModel>;
}

export async function openBaseModel(dir: string, threads: number | undefined): Promise<BaseModel> {
  const folder = resolve(dir);
  const open = () => EmbeddedModel.open({ dir: folder, threads });
  await using model = await open();
  const tokenizerFile = await readFile(join(folder, 'tokenizer.json')).catch(() => undefined);
  return {
    name: (hubNameOf(folder) ?? basename(await realpath(folder))).replaceAll(/[^\w./-]/g, '_'),
    folder,
    shape: { vocabSize: model.vocabSize, contextLength: model.contextLength },
    weights: { id: 'base', folder, check: async () => {} },
    tokenizer: await loadTokenizer(folder).catch((thrown: unknown) => {
      if (thrown instanceof TrainyardError && thrown.code === 'TOKENIZER_INVALID') return undefined;
      throw thrown;
    }),
    tokenizerDigest: tokenizerFile && createHash('sha256').update(tokenizerFile).digest('hex'),
    open,
  };
}

export function checkBaseModel({ name, folder }: BaseModel, asked: string): void {
  if (asked === name || asked === folder) return;
  const found = `is ${JSON.stringify(asked.slice(0, 200))}, expected ${JSON.stringify(name)}`;
  throw invalid('base_model', found, 'this server has one base model; another one needs another server, started with --model');
}

const LABEL = 'saved.json';
const RUN = 'run.json';
const UNNAMED = 'unnamed';
const KINDS: readonly WeightsKind[] = ['weights', 'sampler_weights'];
/** Subfolders for temporary names. A weights name never contains a dot, so these cannot collide with one. */
const UNFINISHED = '.unfinished';
const REPLACED = '.replaced';

const runLabel = z.object({
  base_model: z.string(),
  /** The rank the client asked for. The server trains all parameters regardless. */
  lora_rank: z.int().nullable(),
  created_at: z.string(),
  user_metadata: z.record(z.string(), z.unknown()).nullable(),
});
type RunLabel = z.infer<typeof runLabel>;

const savedLabel = z.object({
  /** New for each save, which tells weights apart from those they replaced under the same name. */
  id: z.string(),
  base_model: z.string(),
  saved_at: z.string(),
  bytes: z.int(),
  user_metadata: z.record(z.string(), z.string()).nullable(),
});

type SavedLabel = z.infer<typeof savedLabel>;

interface SavedWeights extends SavedLabel, WeightsPath {
  readonly folder: string;
}

/** Writes weights into an existing, empty folder. */
type WriteWeights = (dir: string, withOptimizer: boolean) => Promise<void>;

export interface SaveOptions {
  readonly overwrite: boolean;
  readonly userMetadata: Readonly<Record<string, string>> | null;
}

export class WeightsFolder {
  readonly #root: string;
  /** Its tokenizer files are copied into each save. */
  readonly #base: BaseModel;

  private constructor(root: string, base: BaseModel) {
    this.#root = root;
    this.#base = base;
  }

  static async open(root: string, base: BaseModel): Promise<WeightsFolder> {
    const folder = new WeightsFolder(root, base);
    for (const model of await folder.#models()) {
      await remove(join(root, model, UNNAMED));
      for (const kind of KINDS) await finishOrRemove(join(root, model, kind));
      // A model without saved weights cannot be used any more, so its label is removed too.
      const left = (await readdir(join(root, model))).filter((name) => name !== RUN);
      if (left.length === 0) await remove(join(root, model));
    }
    return folder;
  }

  async createRun(modelId: string, label: RunLabel): Promise<void> {
    const dir = join(this.#root, modelId);
    await mkdir(dir);
    await writeFile(join(dir, RUN), `${JSON.stringify(label, null, 2)}\n`);
    for (const path of [join(dir, RUN), dir, this.#root]) await sync(path);
  }

  /** Works for models that no longer live, too. */
  async run(modelId: string): Promise<RunLabel | undefined> {
    return isWeightsName(modelId) ? await readLabel(runLabel, join(this.#root, modelId, RUN)) : undefined;
  }

  /** Newest first. */
  async runs(): Promise<readonly { readonly modelId: string; readonly label: RunLabel }[]> {
    const found: { readonly modelId: string; readonly label: RunLabel }[] = [];
    for (const modelId of await this.#models()) {
      const label = await this.run(modelId);
      if (label !== undefined) found.push({ modelId, label });
    }
    return found.sort((a, b) => (a.label.created_at < b.label.created_at ? 1 : -1));
  }

  /** Durable once it resolves. Throws if the name is taken and `overwrite` is false. */
  async save(path: WeightsPath, write: WriteWeights, { overwrite, userMetadata }: SaveOptions): Promise<void> {
    const parent = join(this.#root, path.modelId, path.kind);
    const place = join(parent, path.name);
    if (!overwrite && (await this.find(path)) !== undefined) {
      throw refused('invalid_request', `${formatWeightsPath(path)} was saved before`, {
        hint: 'give another name, or ask to overwrite it',
        param: 'path',
      });
    }
    const unfinished = await newFolderIn(join(parent, UNFINISHED));
    await this.#write(unfinished, write, path.kind === 'weights', userMetadata);
    const aside = join(parent, REPLACED, path.name);
    // If the process dies before the second rename, the next start moves the old weights back.
    if (overwrite) {
      await mkdir(dirname(aside), { recursive: true });
      await remove(aside);
      await rename(place, aside).catch(ignoreMissing);
    }
    // Without `overwrite`, this fails if the target exists.
    await rename(unfinished, place).catch(async (thrown) => {
      await rename(aside, place).catch(ignoreMissing);
      await remove(unfinished);
      throw thrown;
    });
    await sync(parent);
    await sync(join(this.#root, path.modelId));
    await remove(aside);
  }

  /** Weights without a name. Not durable: they are removed when the folder is next opened. */
  async saveUnnamed(
    modelId: string,
    number: number,
    write: WriteWeights,
  ): Promise<{ readonly id: string; readonly folder: string }> {
    const folder = join(this.#root, modelId, UNNAMED, String(number));
    await mkdir(dirname(folder), { recursive: true });
    return { id: await this.#write(folder, write, false, null), folder };
  }

  async find(path: WeightsPath): Promise<SavedWeights | undefined> {
    const folder = join(this.#root, path.modelId, path.kind, path.name);
    const label = await readLabel(savedLabel, join(folder, LABEL));
    return label && { ...label, ...path, folder };
  }

  /** Throws `unknown_weights`. */
  async get(path: WeightsPath): Promise<SavedWeights> {
    const saved = await this.find(path);
    if (saved !== undefined) return saved;
    throw refused('unknown_weights', `there is nothing saved at ${formatWeightsPath(path)}`, { param: 'path' });
  }

  /** Binds to the weights saved there now: `check` throws once they are removed or replaced. `param`: the request field of the path. */
  async pin(path: WeightsPath, param: string): Promise<Weights> {
    const { id, folder } = await this.get(path);
    const check = async () => {
      if ((await this.find(path))?.id === id) return;
      throw refused('unknown_weights', `what was saved at ${formatWeightsPath(path)} has been removed or replaced`, { param });
    };
    return { id, folder, check };
  }

  /** Newest first. */
  async list(modelId: string): Promise<readonly SavedWeights[]> {
    const found: (SavedWeights | undefined)[] = [];
    for (const kind of KINDS) {
      for (const name of (await readdir(join(this.#root, modelId, kind)).catch(() => [])).filter(isWeightsName)) {
        found.push(await this.find({ modelId, kind, name }));
      }
    }
    return newestFirst(found.filter((saved) => saved !== undefined));
  }

  /** Renames the folder first, so that it is never seen half removed. */
  async remove(path: WeightsPath): Promise<void> {
    const { folder } = await this.get(path);
    const aside = await newFolderIn(join(dirname(folder), UNFINISHED));
    await rename(folder, aside);
    await remove(aside);
  }

  /** Returns the id of the new save. */
  async #write(dir: string, write: WriteWeights, withOptimizer: boolean, metadata: SaveOptions['userMetadata']): Promise<string> {
    await remove(dir);
    await mkdir(dir);
    try {
      await write(dir, withOptimizer);
      for (const file of TOKENIZER_FILES) await copyFile(join(this.#base.folder, file), join(dir, file)).catch(ignoreMissing);
      const sizes = await Promise.all((await readdir(dir)).map(async (file) => (await stat(join(dir, file))).size));
      const label: SavedLabel = {
        id: randomUUID(),
        base_model: this.#base.name,
        saved_at: new Date().toISOString(),
        bytes: sizes.reduce((sum, size) => sum + size, 0),
        user_metadata: metadata && { ...metadata },
      };
      await writeFile(join(dir, LABEL), `${JSON.stringify(label, null, 2)}\n`);
      for (const file of await readdir(dir)) await sync(join(dir, file));
      await sync(dir);
      return label.id;
    } catch (thrown) {
      await remove(dir);
      throw thrown;
    }
  }

  async #models(): Promise<readonly string[]> {
    const entries = await readdir(this.#root, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory() && isWeightsName(entry.name)).map(({ name }) => name);
  }
}

export async function remove(folder: string): Promise<void> {
  await rm(folder, { recursive: true, force: true });
}

/** Recovery after a crash: restores weights that were moved aside without being replaced, and removes all other temporary folders. */
async function finishOrRemove(parent: string): Promise<void> {
  const names: readonly string[] = await readdir(parent).catch(() => []);
  const aside: readonly string[] = await readdir(join(parent, REPLACED)).catch(() => []);
  for (const name of aside) if (!names.includes(name)) await rename(join(parent, REPLACED, name), join(parent, name));
  for (const name of names.filter((name) => !isWeightsName(name))) await remove(join(parent, name));
}

function newestFirst(weights: readonly SavedWeights[]): SavedWeights[] {
  return weights.toSorted((a, b) => (a.saved_at < b.saved_at ? 1 : -1));
}

async function newFolderIn(parent: string): Promise<string> {
  const folder = join(parent, randomUUID());
  await mkdir(folder, { recursive: true });
  return folder;
}

async function readLabel<T>(schema: z.ZodType<T>, path: string): Promise<T | undefined> {
  return schema.safeParse(parsedJson(await readFile(path, 'utf8').catch(() => ''))).data;
}

function ignoreMissing(thrown: NodeJS.ErrnoException): void {
  if (thrown.code !== 'ENOENT') throw thrown;
}

// Routes that list, describe and delete saved weights. Saving and loading are verbs of a model.

export function weightsRoutes(weights: WeightsFolder): Routes {
  return {
    'POST /weights_info': async (request) => {
      const { tinker_path } = await readRequest(weightsInfoRequest, request);
      const path = parseWeightsPath(tinker_path, 'tinker_path');
      const { base_model } = await weights.get(path);
      const lora_rank = (await weights.run(path.modelId))?.lora_rank ?? 1;
      // Clients create a model from this reply and only know LoRA models. `full_parameter_training` states the truth.
      const lora = { is_lora: true, lora_rank, train_unembed: true, train_mlp: true, train_attn: true };
      return jsonReply(200, { base_model, ...lora, full_parameter_training: true });
    },

    'GET /training_runs': async ({ query }) => {
      const { page, cursor } = pageOf(await weights.runs(), query);
      const training_runs = await Promise.all(page.map(({ modelId, label }) => runOf(weights, modelId, label)));
      return jsonReply(200, { training_runs, cursor });
    },

    'GET /training_runs/{run}': async ({ names: { run = '' } }) =>
      jsonReply(200, await runOf(weights, run, await knownRun(weights, run))),

    'GET /training_runs/{run}/checkpoints': async ({ names: { run = '' } }) => {
      await knownRun(weights, run);
      return jsonReply(200, { checkpoints: (await weights.list(run)).map(checkpointOf) });
    },

    // Paths that go on (archive, publish, ttl) are other verbs. None of them is offered.
    'DELETE /training_runs/{run}/checkpoints/{kind}/{name}': async ({ names: { run, kind, name } }) => {
      await weights.remove(parseWeightsPath(`tinker://${run}/${kind}/${name}`, 'checkpoint_id'));
      return jsonReply(200, { status: 'deleted' });
    },

    'GET /checkpoints': async ({ query }) => {
      const lists = await Promise.all((await weights.runs()).map(({ modelId }) => weights.list(modelId)));
      const { page, cursor } = pageOf(newestFirst(lists.flat()), query);
      return jsonReply(200, { checkpoints: page.map(checkpointOf), cursor });
    },
  };
}

async function knownRun(weights: WeightsFolder, modelId: string): Promise<RunLabel> {
  const label = await weights.run(modelId);
  if (label !== undefined) return label;
  throw refused('unknown_model', `there is no training run ${JSON.stringify(modelId.slice(0, 80))}`);
}

async function runOf(weights: WeightsFolder, modelId: string, label: RunLabel): Promise<object> {
  const saved = await weights.list(modelId);
  const latest = (kind: WeightsKind) => saved.filter((one) => one.kind === kind).map(checkpointOf)[0] ?? null;
  const metadata = label.user_metadata && Object.entries(label.user_metadata).map(([key, value]) => [key, String(value)]);
  return {
    training_run_id: modelId,
    base_model: label.base_model,
    model_owner: 'local',
    corrupted: false,
    is_lora: false,
    lora_rank: null,
    full_parameter_training: true,
    last_request_time: saved[0]?.saved_at ?? label.created_at,
    last_checkpoint: latest('weights'),
    last_sampler_checkpoint: latest('sampler_weights'),
    user_metadata: metadata && Object.fromEntries(metadata),
  };
}

function checkpointOf(saved: SavedWeights): object {
  return {
    checkpoint_id: `${saved.kind}/${saved.name}`,
    checkpoint_type: saved.kind === 'weights' ? 'training' : 'sampler',
    time: saved.saved_at,
    tinker_path: formatWeightsPath(saved),
    size_bytes: saved.bytes,
    public: false,
    user_metadata: saved.user_metadata,
    expires_at: null,
  };
}

const LARGEST_PAGE = 1000;

function pageOf<T>(all: readonly T[], query: string) {
  const given = new URLSearchParams(query);
  const number = (name: string, otherwise: number): number => {
    const value = Number(given.get(name) ?? otherwise);
    if (Number.isSafeInteger(value) && value >= 0) return value;
    throw invalid(name, `is ${given.get(name)}, expected a whole number of at least 0`);
  };
  const limit = Math.min(number('limit', 20), LARGEST_PAGE);
  const offset = number('offset', 0);
  return { page: all.slice(offset, offset + limit), cursor: { offset, limit, total_count: all.length } };
}
