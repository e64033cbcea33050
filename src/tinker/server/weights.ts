/**
 * The weights that a server has: its one base model, what was saved, and the routes that look at both.
 *
 * On disk `<state>/<model>/weights/<name>` is for training to go on from, `<state>/<model>/sampler_weights/<name>` to sample from, and
 * `<state>/<model>/unnamed/<number>` holds sampler weights that nobody named. Each is a model folder with a label, `saved.json`. A set of
 * weights is written beside its place, made durable and then renamed, so that it is there whole or not at all, whenever the process dies.
 * What was left unfinished, and everything unnamed, is removed when the folder is opened. One process has the folder at a time: whoever
 * opens it sees to that.
 */
import { createHash, randomUUID } from 'node:crypto';
import { copyFile, mkdir, open, readdir, readFile, realpath, rename, rm, stat, writeFile } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import { parsedJson } from '../../core/json.ts';
import { jsonReply } from '../../http/message.ts';
import { EmbeddedModel } from '../../nn/embedded-model.ts';
import { TOKENIZER_FILES } from '../../run/checkpoint.ts';
import { loadTokenizer, type Tokenizer } from '../../tokens/tokenizer.ts';
import type { WeightsKind, WeightsPath } from '../wire/tinker-messages.ts';
import { formatWeightsPath, isWeightsName, parseWeightsPath, weightsInfoRequest } from '../wire/tinker-messages.ts';
import { invalid, type Routes, readRequest, refused } from './requests.ts';

/** A set of weights to load. */
export interface Weights {
  /** Another one for each set, also under the same name. */
  readonly id: string;
  readonly folder: string;
  /** Throws unless these are still the weights in the folder. To be asked after they were loaded, too. */
  check(): Promise<void>;
}

// The base model.

/** A model folder, known by its name or its path. Every model in training begins as a copy of it. */
export interface BaseModel {
  readonly name: string;
  /** Absolute. */
  readonly folder: string;
  readonly shape: { readonly vocabSize: number; readonly contextLength: number };
  readonly weights: Weights;
  /** Where the folder has a usable one: requests hold ids, and texts only where somebody stops at one. */
  readonly tokenizer: Tokenizer | undefined;
  /** SHA-256 of tokenizer.json, by which a client knows that it has the same one. */
  readonly tokenizerDigest: string | undefined;
  open(): Promise<EmbeddedModel>;
}

export async function openBaseModel(dir: string, threads: number | undefined): Promise<BaseModel> {
  const folder = resolve(dir);
  const open = (): Promise<EmbeddedModel> => EmbeddedModel.open({ dir: folder, threads });
  await using model = await open();
  const tokenizerFile = await readFile(join(folder, 'tokenizer.json')).catch(() => undefined);
  return {
    name: basename(await realpath(folder)).replaceAll(/[^\w.-]/g, '_'),
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

/** Throws unless this is the base model. */
export function checkBaseModel({ name, folder }: BaseModel, asked: string): void {
  if (asked === name || asked === folder) return;
  const found = `is ${JSON.stringify(asked.slice(0, 200))}, expected ${JSON.stringify(name)}`;
  throw invalid('base_model', found, 'this server has one base model; another one needs another server, started with --model');
}

// Saved weights.

const LABEL = 'saved.json';
const RUN = 'run.json';
const UNNAMED = 'unnamed';
const KINDS: readonly WeightsKind[] = ['weights', 'sampler_weights'];
const OPTIMIZER = 'optimizer.safetensors';
/** Folders beside the places, in which a name has the length that the wire allows; no name has a dot in it. */
const UNFINISHED = '.unfinished';
const REPLACED = '.replaced';

const runLabel = z.object({
  base_model: z.string(),
  /** What the client asked for; all parameters are trained, whatever it says. */
  lora_rank: z.int().nullable(),
  created_at: z.string(),
  user_metadata: z.record(z.string(), z.unknown()).nullable(),
});
export type RunLabel = z.infer<typeof runLabel>;

const savedLabel = z.object({
  /** Another one each time: weights that replaced others under a name are not those. */
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

/** Writes weights into an existing empty folder. */
type WriteWeights = (dir: string) => Promise<void>;

export interface SaveOptions {
  readonly overwrite: boolean;
  readonly userMetadata: Readonly<Record<string, string>> | null;
}

export class WeightsFolder {
  readonly #root: string;
  /** Its tokenizer goes with what is saved. */
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
      // A model that nothing was saved of is gone, and so is what it was made from.
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

  /** Of a model that lives or lived. */
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

  /** Durable when it resolves. Throws where the name is taken. */
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
    // If the process dies before the second rename, the next start moves them back.
    if (overwrite) {
      await mkdir(dirname(aside), { recursive: true });
      await remove(aside);
      await rename(place, aside).catch(ignoreMissing);
    }
    // Without leave to overwrite, this fails where anything is.
    await rename(unfinished, place).catch(async (thrown) => {
      await rename(aside, place).catch(ignoreMissing);
      await remove(unfinished);
      throw thrown;
    });
    await sync(parent);
    await sync(join(this.#root, path.modelId));
    await remove(aside);
  }

  /** Weights without a name. Not durable: they end with the process. */
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

  /** These weights and no others, even if others are saved under the name later. `param`: the field the path came in. */
  async pin(path: WeightsPath, param: string): Promise<Weights> {
    const { id, folder } = await this.get(path);
    const check = async (): Promise<void> => {
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

  /** Gone at once: renamed first, so that half of it is never seen. */
  async remove(path: WeightsPath): Promise<void> {
    const { folder } = await this.get(path);
    const aside = await newFolderIn(join(dirname(folder), UNFINISHED));
    await rename(folder, aside);
    await remove(aside);
  }

  /** The id of what was written. */
  async #write(dir: string, write: WriteWeights, withOptimizer: boolean, metadata: SaveOptions['userMetadata']): Promise<string> {
    await remove(dir);
    await mkdir(dir);
    try {
      await write(dir);
      if (!withOptimizer) await rm(join(dir, OPTIMIZER), { force: true });
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

/** After a kill: what was moved aside comes back unless its replacement is there; the rest of what is unfinished goes. */
async function finishOrRemove(parent: string): Promise<void> {
  const names: readonly string[] = await readdir(parent).catch(() => []);
  const aside: readonly string[] = await readdir(join(parent, REPLACED)).catch(() => []);
  for (const name of aside) if (!names.includes(name)) await rename(join(parent, REPLACED, name), join(parent, name));
  for (const name of names.filter((name) => !isWeightsName(name))) await remove(join(parent, name));
}

function newestFirst(weights: readonly SavedWeights[]): SavedWeights[] {
  return weights.toSorted((a, b) => (a.saved_at < b.saved_at ? 1 : -1));
}

/** Nobody else writes to it or removes it. */
async function newFolderIn(parent: string): Promise<string> {
  const folder = join(parent, randomUUID());
  await mkdir(folder, { recursive: true });
  return folder;
}

/** Undefined where there is none that can be read. */
async function readLabel<T>(schema: z.ZodType<T>, path: string): Promise<T | undefined> {
  return schema.safeParse(parsedJson(await readFile(path, 'utf8').catch(() => ''))).data;
}

function ignoreMissing(thrown: NodeJS.ErrnoException): void {
  if (thrown.code !== 'ENOENT') throw thrown;
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}

// Routes that look at what was saved and remove it. Those that save and load are a model's verbs.

export function weightsRoutes(weights: WeightsFolder): Routes {
  return {
    'POST /weights_info': async (request) => {
      const { tinker_path } = await readRequest(weightsInfoRequest, request);
      const path = parseWeightsPath(tinker_path, 'tinker_path');
      const { base_model } = await weights.get(path);
      const lora_rank = (await weights.run(path.modelId))?.lora_rank ?? 1;
      // Clients make a model again from this, and only know models of this kind; what is true stands beside it.
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

    'DELETE /training_runs/{run}/checkpoints/{checkpoint+}': async ({ names: { run, checkpoint } }) => {
      await weights.remove(parseWeightsPath(`tinker://${run}/${checkpoint}`, 'checkpoint_id'));
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
    ...{ training_run_id: modelId, base_model: label.base_model, model_owner: 'local', corrupted: false },
    ...{ is_lora: false, lora_rank: null, full_parameter_training: true },
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

function pageOf<T>(all: readonly T[], query: string): { readonly page: readonly T[]; readonly cursor: object } {
  const given = new URLSearchParams(query);
  const number = (name: string, otherwise: number): number => {
    const value = Number(given.get(name) ?? otherwise);
    if (Number.isSafeInteger(value) && value >= 0) return value;
    throw invalid(name, `is ${given.get(name)}, expected a whole number of at least 0`);
  };
  const [limit, offset] = [Math.min(number('limit', 20), LARGEST_PAGE), number('offset', 0)];
  return { page: all.slice(offset, offset + limit), cursor: { offset, limit, total_count: all.length } };
}
