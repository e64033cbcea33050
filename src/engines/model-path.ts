/**
 * What `--model` names → an absolute path: a model folder, a GGUF file, or a model of the Hugging Face hub (`Owner/Name`, of a repository of
 * GGUF files `Owner/Name:file.gguf`) that is in the local cache. A path that exists wins over a name at the hub. Downloads nothing; for what
 * is not here the error says what to type. checkpoint.ts checks that a folder holds a model.
 */
import { existsSync } from 'node:fs';
import { open, readdir, readFile, stat } from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, join, resolve, sep } from 'node:path';
import { nearName, TrainyardError } from '../core/errors.ts';
import { type EngineName, isApi, shellWord } from '../settings/settings.ts';

/** `weights`, or `text` if they are at a server and only config and tokenizer are needed. */
type Needs = 'weights' | 'text';

export const IS_GGUF = /\.gguf$/;
export const HUB_NAME = /^([\w.-]+\/[\w.-]+)(?::(.+\.gguf))?$/;
const CACHED = /models--([\w.-]+?)--([\w.-]+)[\\/]snapshots[\\/][0-9a-f]{40}(?:[\\/](.+\.gguf))?$/;

/** The cache that Hugging Face's own programs use. */
export function hubCache({ HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME }: NodeJS.ProcessEnv = process.env): string {
  const home = HF_HOME || join(XDG_CACHE_HOME || join(homedir(), '.cache'), 'huggingface');
  return resolve(HF_HUB_CACHE || join(home, 'hub'));
}

export function cacheFolder(id: string): string {
  return join(hubCache(), `models--${id.replace('/', '--')}`);
}

/** Undefined unless the path is in a cache of the hub. */
export function hubNameOf(path: string): string | undefined {
  const [, owner, name, file] = CACHED.exec(path) ?? [];
  return owner && `${owner}/${name}${file ? `:${file.replaceAll('\\', '/')}` : ''}`;
}

/** The request with the path of its model, unless it names none or one behind an API. */
export async function withModelPath<T extends { readonly engine?: EngineName | undefined; readonly model?: string | undefined }>(
  request: T,
): Promise<T> {
  const { engine, model } = request;
  if (model === undefined || isApi(engine)) return request;
  return { ...request, model: await resolveModel(model, engine === 'tinker' ? 'text' : 'weights') };
}

/** Throws FILE_NOT_FOUND. */
export async function resolveModel(name: string, needs: Needs = 'weights'): Promise<string> {
  const found = await stat(name).catch(() => undefined);
  if (found?.isDirectory() || (found?.isFile() && (await isGguf(name)))) return resolve(name);
  if (found !== undefined) {
    const isInModel = existsSync(join(dirname(name), 'config.json'));
    const hint = isInModel
      ? `did you mean its folder, ${dirname(name)}?`
      : 'give a model folder, a GGUF file, or Owner/Name after trainyard model get';
    throw new TrainyardError('FILE_NOT_FOUND', `no model folder at ${name}: it is a file, and not a GGUF file`, hint);
  }
  const [, id, file] = HUB_NAME.exec(name) ?? [];
  const cached = id === undefined ? undefined : await inCache(id, file, needs);
  if (cached !== undefined) return cached;
  throw await notFound(name, id, file);
}

/** By its first bytes: Ollama's files have no ending. A file with the ending is one, though it may be damaged. */
async function isGguf(path: string): Promise<boolean> {
  if (IS_GGUF.test(path)) return true;
  await using file = await open(path);
  const { buffer, bytesRead } = await file.read(Buffer.alloc(4), 0, 4, 0);
  return bytesRead === 4 && buffer.toString('latin1') === 'GGUF';
}

/** In the snapshot of `main`, or else in the newest that has what is needed. */
async function inCache(id: string, file: string | undefined, needs: Needs): Promise<string | undefined> {
  for (const snapshot of await snapshotsOf(id)) {
    const all = (await readdir(snapshot, { recursive: true })).map((name) => name.replaceAll(sep, '/')).toSorted();
    // Links to files that are no longer there do not count.
    const names = all.filter((name) => existsSync(join(snapshot, name)));
    const isWhole = names.includes('config.json') && (needs === 'text' || names.some((name) => name.endsWith('.safetensors')));
    if (file === undefined && isWhole) return snapshot;
    const ggufs = names.filter((name) => (file === undefined ? IS_GGUF.test(name) : name === file));
    if (ggufs.length === 1) return join(snapshot, ggufs[0]!);
    if (ggufs.length > 1) {
      const hint = `give one of ${ggufs.map((gguf) => `${id}:${gguf}`).join(', ')}`;
      throw new TrainyardError('FILE_NOT_FOUND', `the cache holds ${ggufs.length} GGUF files of ${id}`, hint);
    }
  }
  return undefined;
}

async function snapshotsOf(id: string): Promise<readonly string[]> {
  const folder = join(cacheFolder(id), 'snapshots');
  const main = await readFile(join(cacheFolder(id), 'refs', 'main'), 'utf8').catch(() => '');
  const names = await readdir(folder).catch(() => []);
  const all = await Promise.all(names.map(async (name) => ({ name, at: (await stat(join(folder, name))).mtimeMs })));
  const order = ({ name, at }: (typeof all)[number]): number => (name === main.trim() ? Infinity : at);
  return all.toSorted((a, b) => order(b) - order(a)).map(({ name }) => join(folder, name));
}

async function notFound(name: string, id: string | undefined, file: string | undefined): Promise<TrainyardError> {
  const folders = (await readdir(hubCache()).catch(() => [])).filter((folder) => folder.startsWith('models--'));
  const cached = folders.map((folder) => folder.slice('models--'.length).replace('--', '/'));
  const isPart = id !== undefined && cached.includes(id);
  const beside = (await readdir(dirname(name)).catch(() => [])).map((one) => join(dirname(name), one));
  const lacksOwner = cached.find((one) => one.toLowerCase().endsWith(`/${name.toLowerCase()}`));
  const near = isPart ? undefined : (nearName(name, [...beside, ...cached]) ?? lacksOwner);
  // A path may be of a cache that was emptied.
  const [wanted, ...wantedFile] = (id === undefined ? hubNameOf(name) : name)?.split(':') ?? [];
  const get = `download it from the Hugging Face hub: ${['trainyard model get', wanted, ...wantedFile.map(shellWord)].join(' ')}`;
  const hints = [...(near === undefined ? [] : [`did you mean ${near}?`]), ...(wanted === undefined ? [] : [get])];
  const there = isPart ? `${id} in ${hubCache()} lacks ${file ?? 'its weights'}` : `no model of that name is in ${hubCache()}`;
  return new TrainyardError(
    'FILE_NOT_FOUND',
    `no model folder at ${name}${id === undefined ? '' : `, and ${there}`}`,
    hints.join(' Or ') ||
      'give a folder with config.json, weights and tokenizer.json, a .gguf file, or a model that trainyard model get Owner/Name downloaded; for a model behind an API, add --engine openai or anthropic',
  );
}
