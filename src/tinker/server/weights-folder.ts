/**
 * Saved weights on disk: `<state>/<model>/weights/<name>` for training to go on from, `<state>/<model>/sampler_weights/<name>` to sample
 * from, `<state>/<model>/unnamed/<number>` for sampler weights that nobody named. Each is a model folder with a label, `saved.json`.
 *
 * A set of weights is written beside its place, made durable and then renamed, so that it is there whole or not at all, whenever the
 * process dies. What was left unfinished, and everything unnamed, is removed when the folder is opened. One process has the folder at
 * a time: that is for whoever opens it to see to.
 */
import { randomUUID } from 'node:crypto';
import { copyFile, mkdir, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { z } from 'zod';
import { formatWeightsPath, isWeightsName, type WeightsKind, type WeightsPath } from '../wire/verbs.ts';
import { ApiError } from './api-error.ts';
import type { Weights } from './sampler-pool.ts';

const LABEL = 'saved.json';
const RUN = 'run.json';
const UNNAMED = 'unnamed';
const OPTIMIZER = 'optimizer.safetensors';
const TOKENIZER = ['tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'];
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
export type SavedLabel = z.infer<typeof savedLabel>;

export interface SavedWeights extends SavedLabel {
  readonly folder: string;
}

export interface ListedWeights extends SavedWeights {
  readonly path: string;
  readonly kind: WeightsKind;
  readonly name: string;
}

/** Whoever has weights: writes them into an existing empty folder. */
export type Writer = (dir: string) => Promise<void>;

export interface SaveOptions {
  readonly overwrite: boolean;
  readonly userMetadata: Readonly<Record<string, string>> | null;
}

export class WeightsFolder {
  readonly #root: string;
  /** Model folder of the base model: its tokenizer goes with what is saved. */
  readonly #base: string;
  readonly #baseName: string;

  private constructor(root: string, base: string, baseName: string) {
    this.#root = root;
    this.#base = base;
    this.#baseName = baseName;
  }

  static async open(root: string, base: string, baseName: string): Promise<WeightsFolder> {
    const folder = new WeightsFolder(root, base, baseName);
    for (const model of await folder.#models()) {
      await rm(join(root, model, UNNAMED), { recursive: true, force: true });
      for (const kind of ['weights', 'sampler_weights']) await finishOrRemove(join(root, model, kind));
      // A model that nothing was saved of is gone, and so is what it was made from.
      const left = (await readdir(join(root, model))).filter((name) => name !== RUN);
      if (left.length === 0) await rm(join(root, model), { recursive: true, force: true });
    }
    return folder;
  }

  async createRun(modelId: string, label: RunLabel): Promise<void> {
    const dir = join(this.#root, modelId);
    await mkdir(dir);
    await writeFile(join(dir, RUN), `${JSON.stringify(label, null, 2)}\n`);
    await sync(join(dir, RUN));
    await sync(dir);
    await sync(this.#root);
  }

  /** Of a model that lives or lived. */
  async run(modelId: string): Promise<RunLabel | undefined> {
    if (!isWeightsName(modelId)) return undefined;
    const text = await readFile(join(this.#root, modelId, RUN), 'utf8').catch(() => undefined);
    return text === undefined ? undefined : runLabel.safeParse(parsed(text)).data;
  }

  /** Newest first. */
  async runs(): Promise<readonly { readonly modelId: string; readonly label: RunLabel }[]> {
    const found = await Promise.all((await this.#models()).map(async (modelId) => ({ modelId, label: await this.run(modelId) })));
    return found
      .flatMap(({ modelId, label }) => (label === undefined ? [] : [{ modelId, label }]))
      .toSorted((a, b) => (a.label.created_at < b.label.created_at ? 1 : -1));
  }

  /** Durable when it resolves. Throws where the name is taken. */
  async save(path: WeightsPath, write: Writer, { overwrite, userMetadata }: SaveOptions): Promise<void> {
    const parent = join(this.#root, path.modelId, path.kind);
    const place = join(parent, path.name);
    if (!overwrite && (await this.find(path)) !== undefined) {
      throw new ApiError('invalid_request', `${formatWeightsPath(path)} was saved before`, {
        hint: 'give another name, or ask to overwrite it',
        param: 'path',
      });
    }
    const unfinished = await newFolderIn(join(parent, UNFINISHED));
    await this.#write(unfinished, write, { optimizer: path.kind === 'weights', userMetadata });
    const aside = join(parent, REPLACED, path.name);
    if (overwrite) await moveAside(place, aside);
    // Without leave to overwrite, this fails where anything is.
    await rename(unfinished, place).catch(async (thrown) => {
      await rename(aside, place).catch(ignoreMissing);
      await rm(unfinished, { recursive: true, force: true });
      throw thrown;
    });
    await sync(parent);
    await sync(join(this.#root, path.modelId));
    await rm(aside, { recursive: true, force: true });
  }

  /** Weights without a name; the folder they are in, and a function that removes them. Not durable: they end with the process. */
  async saveUnnamed(modelId: string, number: number, write: Writer): Promise<SavedWeights> {
    const folder = join(this.#root, modelId, UNNAMED, String(number));
    await mkdir(join(this.#root, modelId, UNNAMED), { recursive: true });
    const label = await this.#write(folder, write, { optimizer: false, userMetadata: null });
    return { ...label, folder };
  }

  async removeFolder(folder: string): Promise<void> {
    await rm(folder, { recursive: true, force: true });
  }

  async removeUnnamed(modelId: string): Promise<void> {
    await rm(join(this.#root, modelId, UNNAMED), { recursive: true, force: true });
  }

  async find({ modelId, kind, name }: WeightsPath): Promise<SavedWeights | undefined> {
    const folder = join(this.#root, modelId, kind, name);
    const text = await readFile(join(folder, LABEL), 'utf8').catch(() => undefined);
    const label = text === undefined ? undefined : savedLabel.safeParse(parsed(text)).data;
    return label && { ...label, folder };
  }

  /** Throws `unknown_weights`. */
  async get(path: WeightsPath): Promise<SavedWeights> {
    const saved = await this.find(path);
    if (saved !== undefined) return saved;
    throw new ApiError('unknown_weights', `there is nothing saved at ${formatWeightsPath(path)}`, { param: 'path' });
  }

  /** These weights and no others, even if others are saved under the name later. `where`: the field the path came in. */
  async pin(path: WeightsPath, where: string): Promise<Weights> {
    const { id, folder } = await this.get(path);
    const check = async (): Promise<void> => {
      if ((await this.find(path))?.id === id) return;
      throw new ApiError('unknown_weights', `what was saved at ${formatWeightsPath(path)} has been removed or replaced`, {
        param: where,
      });
    };
    return { id, folder, check };
  }

  async list(modelId: string): Promise<readonly ListedWeights[]> {
    const found: ListedWeights[] = [];
    for (const kind of ['weights', 'sampler_weights'] as const) {
      for (const name of (await readdir(join(this.#root, modelId, kind)).catch(() => [])).filter(isWeightsName)) {
        const saved = await this.find({ modelId, kind, name });
        if (saved) found.push({ ...saved, path: formatWeightsPath({ modelId, kind, name }), kind, name });
      }
    }
    return found.toSorted((a, b) => (a.saved_at < b.saved_at ? 1 : -1));
  }

  /** Gone at once: renamed first, so that half of it is never seen. */
  async remove(path: WeightsPath): Promise<void> {
    const { folder } = await this.get(path);
    const aside = await newFolderIn(join(dirname(folder), UNFINISHED));
    await rename(folder, aside);
    await rm(aside, { recursive: true, force: true });
  }

  async #write(
    dir: string,
    write: Writer,
    { optimizer, userMetadata }: { readonly optimizer: boolean; readonly userMetadata: Readonly<Record<string, string>> | null },
  ): Promise<SavedLabel> {
    await rm(dir, { recursive: true, force: true });
    await mkdir(dir);
    try {
      await write(dir);
      if (!optimizer) await rm(join(dir, OPTIMIZER), { force: true });
      for (const file of TOKENIZER) await copyFile(join(this.#base, file), join(dir, file)).catch(ignoreMissing);
      const sizes = await Promise.all((await readdir(dir)).map(async (file) => (await stat(join(dir, file))).size));
      const label: SavedLabel = {
        id: randomUUID(),
        base_model: this.#baseName,
        saved_at: new Date().toISOString(),
        bytes: sizes.reduce((sum, size) => sum + size, 0),
        user_metadata: userMetadata && { ...userMetadata },
      };
      await writeFile(join(dir, LABEL), `${JSON.stringify(label, null, 2)}\n`);
      for (const file of await readdir(dir)) await sync(join(dir, file));
      await sync(dir);
      return label;
    } catch (thrown) {
      await rm(dir, { recursive: true, force: true });
      throw thrown;
    }
  }

  async #models(): Promise<readonly string[]> {
    const entries = await readdir(this.#root, { withFileTypes: true });
    return entries.filter((entry) => entry.isDirectory() && isWeightsName(entry.name)).map(({ name }) => name);
  }
}

/** After a kill: what was moved aside comes back unless its replacement is there; the rest of what is unfinished goes. */
async function finishOrRemove(parent: string): Promise<void> {
  const names: readonly string[] = await readdir(parent).catch(() => []);
  const aside: readonly string[] = await readdir(join(parent, REPLACED)).catch(() => []);
  for (const name of aside) if (!names.includes(name)) await rename(join(parent, REPLACED, name), join(parent, name));
  for (const name of names.filter((name) => !isWeightsName(name))) await rm(join(parent, name), { recursive: true, force: true });
}

/** Nobody else writes to it or removes it. */
async function newFolderIn(parent: string): Promise<string> {
  const folder = join(parent, randomUUID());
  await mkdir(folder, { recursive: true });
  return folder;
}

/** A name that is taken has its weights moved aside first; if the process dies in between, they are moved back at the next start. */
async function moveAside(place: string, aside: string): Promise<void> {
  await mkdir(dirname(aside), { recursive: true });
  await rm(aside, { recursive: true, force: true });
  await rename(place, aside).catch(ignoreMissing);
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function ignoreMissing(thrown: NodeJS.ErrnoException): void {
  if (thrown.code !== 'ENOENT') throw thrown;
}

async function sync(path: string): Promise<void> {
  await using handle = await open(path, 'r');
  await handle.sync();
}
