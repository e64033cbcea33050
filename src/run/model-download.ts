/**
 * Downloads a model of the Hugging Face hub into the local cache, in the layout of Hugging Face's own programs. By plain `fetch`, since
 * @huggingface/hub neither resumes nor verifies. A file is written as `blobs/<hash>.incomplete`, where the next call goes on, and gets its
 * name once size and hash are right. The snapshot's links come after all files, then `refs/main`: what is named there is whole. The token
 * goes to the hub only: `fetch` drops it where a large file is redirected to another host.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { link, mkdir, open, readFile, rename, rm, stat, symlink } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import { nearName, shortLine } from '../core/describe.ts';
import { boundary, messageOf, TrainyardError } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import { bodyOf } from '../gateway/model-server.ts';
import { FAMILIES, parseConfig } from '../nn/config.ts';
import { takeLock, writeWhole } from './directory.ts';
import { cacheFolder, hubCache, IS_GGUF } from './model-path.ts';
import { shellWord } from './settings.ts';

interface DownloadOptions {
  readonly signal: AbortSignal;
  /** Bytes of all files, including those that were there. */
  readonly onProgress: (progress: { readonly file: string; readonly done: number; readonly total: number }) => void;
  /** Milliseconds before a lost connection is tried again; doubles each time. */
  readonly waitMs?: number;
}

export interface DownloadedModel {
  /** As `--model` takes it. */
  readonly name: string;
  /** The snapshot, or the GGUF file in it. */
  readonly path: string;
  readonly commit: string;
  readonly bytes: number;
}

/** `hash`: SHA-256 of a large file; of others, git's SHA-1 of the blob. */
type HubFile = { readonly path: string; readonly size: number; readonly hash: string };

interface Hub extends DownloadOptions {
  readonly id: string;
  readonly url: string;
  /** Folder for files under their hashes. */
  readonly blobs: string;
}

const TEXTS = /^(?:(?:generation_)?config|tokenizer(?:_config)?|special_tokens_map|added_tokens)\.json$|^chat_template\.jinja$/;
const [WEIGHTS, INDEX] = ['model.safetensors', 'model.safetensors.index.json'];
const MOST_PAGES = 100;
/** In a row, without a byte more. */
const MOST_TRIES = 5;

const commitSchema = z.object({
  sha: z.string().regex(/^[0-9a-f]{40}$/),
  // What the hub found in the GGUF files of the repository.
  gguf: z.object({ architecture: z.string() }).nullish().catch(undefined),
});
const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });
const treeSchema = z.array(
  z.object({
    type: z.string(),
    // Becomes a path in the cache: none that leads out of it.
    path: z.string().regex(/^(?!\/|.*[\\\0])(?!(?:.*\/)?\.{0,2}(?:\/|$))/),
    size: z.int().min(0),
    oid: z.string().regex(/^[0-9a-f]{40}$/),
    lfs: z.object({ oid: z.string().regex(/^[0-9a-f]{64}$/), size: z.int().min(0) }).nullish(),
  }),
);

/** `gguf`: one file of a repository. Throws DOWNLOAD_FAILED; MODEL_INVALID for what the engine cannot compute, before its weights. */
export async function downloadModel(id: string, gguf: string | undefined, options: DownloadOptions): Promise<DownloadedModel> {
  const url = (process.env['HF_ENDPOINT'] || 'https://huggingface.co').replace(/\/+$/, '');
  if (!/^https?:$/.test(URL.parse(url)?.protocol ?? '')) {
    throw new TrainyardError('USAGE', `HF_ENDPOINT: expected a URL such as https://huggingface.co, found ${JSON.stringify(url)}`);
  }
  const folder = cacheFolder(id);
  const hub: Hub = { ...options, id, url, blobs: join(folder, 'blobs') };
  const [{ sha, gguf: kind }] = await jsonAt(hub, `api/models/${id}/revision/main`, commitSchema);
  const files = await filesAt(hub, sha);
  const { texts, one } = chosen(files, gguf, id);
  if (one && kind && !Object.hasOwn(FAMILIES, kind.architecture)) {
    throw unusable(
      id,
      `is of the architecture ${JSON.stringify(kind.architecture)}, expected ${Object.keys(FAMILIES).join(', ')}`,
    );
  }
  const locks = join(hubCache(), '.locks', basename(folder));
  await onDisk(() => Promise.all([locks, hub.blobs].map((path) => mkdir(path, { recursive: true }))));
  using _lock = takeLock(locks);
  await download(hub, sha, texts);
  const all = [...texts, ...(one === undefined ? await weightsOf(hub, sha, files) : [one])];
  await download(hub, sha, all);
  const snapshot = join(folder, 'snapshots', sha);
  await onDisk(async () => {
    for (const file of all) await linkTo(join(hub.blobs, file.hash), join(snapshot, file.path));
    await mkdir(join(folder, 'refs'), { recursive: true });
    await writeWhole(join(folder, 'refs', 'main'), sha);
  });
  const name = one === undefined ? id : `${id}:${one.path}`;
  return { name, path: join(snapshot, one?.path ?? ''), commit: sha, bytes: bytesOf(all) };
}

const bytesOf = (files: readonly HubFile[]): number => files.reduce((sum, { size }) => sum + size, 0);

async function filesAt(hub: Hub, sha: string): Promise<readonly HubFile[]> {
  const found: z.infer<typeof treeSchema> = [];
  let [page, query = ''] = [0, '?recursive=true'];
  do {
    const [entries, next = '']: [typeof found, string?] = await jsonAt(
      hub,
      `api/models/${hub.id}/tree/${sha}${query}`,
      treeSchema,
    );
    found.push(...entries);
    query = next;
  } while (query !== '' && ++page < MOST_PAGES);
  const files = found.filter(({ type }) => type === 'file');
  return files.map(({ path, size, oid, lfs }) => ({ path, size: lfs?.size ?? size, hash: lfs?.oid ?? oid }));
}

const namedIn = (files: readonly HubFile[], path: string): HubFile | undefined => files.find((file) => file.path === path);

/** Throws MODEL_INVALID, or USAGE where one of several GGUF files must be named. */
function chosen(files: readonly HubFile[], gguf: string | undefined, id: string) {
  const has = (path: string): boolean => namedIn(files, path) !== undefined;
  const ggufs = files.filter(({ path }) => IS_GGUF.test(path));
  if (gguf === undefined && has('config.json') && (has(WEIGHTS) || has(INDEX))) {
    if (!has('tokenizer.json')) throw unusable(id, 'has no tokenizer.json');
    return { texts: files.filter(({ path }) => TEXTS.test(path)), one: undefined };
  }
  const one = gguf === undefined && ggufs.length === 1 ? ggufs[0] : namedIn(ggufs, gguf ?? '');
  if (one !== undefined) {
    if (!/-\d{5}-of-\d{5}\.gguf$/i.test(one.path)) return { texts: [], one };
    throw unusable(id, `holds ${one.path}, which is only a part of a model`);
  }
  if (ggufs.length === 0) {
    throw unusable(id, has('adapter_config.json') ? 'holds only an adapter of another model' : 'holds no such files');
  }
  const list = ggufs.map(({ path, size }) => `${path} (${sizeText(size)})`).join(', ');
  const near =
    nearName(
      gguf ?? '',
      ggufs.map(({ path }) => path),
    ) ?? ggufs[0]!.path;
  const found = gguf === undefined ? `${id} holds ${ggufs.length} GGUF files` : `${id} holds no GGUF file ${gguf}`;
  throw new TrainyardError('USAGE', `${found}: ${shortLine(list, 2_000)}`, {
    hint: `name one: trainyard model get ${id} ${shellWord(near)}`,
  });
}

function unusable(id: string, what: string): TrainyardError {
  const hint = 'expected config.json, tokenizer.json and model.safetensors (or its index and shards), or a whole GGUF file';
  return new TrainyardError('MODEL_INVALID', `${id} ${what}`, { hint });
}

/** What holds the weights, if the engine can compute the model that config.json describes. */
async function weightsOf(hub: Hub, sha: string, files: readonly HubFile[]): Promise<readonly HubFile[]> {
  const jsonIn = async (path: string): Promise<unknown> =>
    parsedJson(await readFile(join(hub.blobs, namedIn(files, path)!.hash), 'utf8'));
  const config = await jsonIn('config.json');
  try {
    parseConfig(config);
  } catch (thrown) {
    if (!(thrown instanceof TrainyardError)) throw thrown;
    throw new TrainyardError(thrown.code, `${hub.id}: ${thrown.message}; its weights were not downloaded`, {
      hint: thrown.hint!,
    });
  }
  const index = namedIn(files, INDEX);
  if (index === undefined) return [namedIn(files, WEIGHTS)!];
  await download(hub, sha, [index]);
  const { data } = indexSchema.safeParse(await jsonIn(INDEX));
  const shards = [...new Set(Object.values(data?.weight_map ?? {}))].map((path) => namedIn(files, path));
  if (shards.length > 0 && shards.every((file) => file?.path.endsWith('.safetensors'))) return [index, ...(shards as HubFile[])];
  throw unusable(hub.id, `has an ${INDEX} that names no shards, or others than it has`);
}

/** Downloads what is missing or damaged. */
async function download(hub: Hub, sha: string, files: readonly HubFile[]): Promise<void> {
  const missing: HubFile[] = [];
  for (const file of files) {
    const blob = join(hub.blobs, file.hash);
    if ((await sizeOf(blob)) !== file.size || (await hashOf(blob, file)) !== file.hash) missing.push(file);
  }
  const total = bytesOf(files);
  let done = total - bytesOf(missing);
  for (const file of missing) {
    await downloadFile(hub, sha, file, (bytes) => hub.onProgress({ file: file.path, done: done + bytes, total }));
    done += file.size;
  }
}

type OnBytes = (bytes: number) => void;

async function downloadFile(hub: Hub, sha: string, file: HubFile, onBytes: OnBytes): Promise<void> {
  const partial = join(hub.blobs, `${file.hash}.incomplete`);
  for (let [tries, had] = [1, await sizeOf(partial)]; ; tries++) {
    try {
      await goOn(hub, sha, file, partial, onBytes);
      break;
    } catch (thrown) {
      const has = await sizeOf(partial);
      if (has > had) [tries, had] = [1, has];
      if (!(thrown instanceof Interrupted) || tries === MOST_TRIES) throw thrown;
      await sleep((hub.waitMs ?? 1_000) * 2 ** (tries - 1), undefined, hub).catch(() => hub.signal.throwIfAborted());
    }
  }
  const found = await hashOf(partial, file);
  if (found === file.hash) return await onDisk(() => rename(partial, join(hub.blobs, file.hash)));
  await rm(partial);
  const message = `${file.path} is not the file that ${hub.url} lists: expected the hash ${file.hash}, found ${found}; it was removed`;
  const hint =
    'type the command again; if it happens again, something on the way changes files: a proxy, or a mirror (HF_ENDPOINT)';
  throw new TrainyardError('DOWNLOAD_FAILED', message, { hint });
}

/** Appends what is missing of the file. */
async function goOn(hub: Hub, sha: string, { path, size }: HubFile, partial: string, onBytes: OnBytes): Promise<void> {
  await using out = await onDisk(() => open(partial, 'a'));
  let at = (await out.stat()).size;
  if (at === size) return;
  const url = `${hub.id}/resolve/${sha}/${path.split('/').map(encodeURIComponent).join('/')}`;
  // Compressed, the bytes could neither be counted nor continued.
  const response = await ask(hub, url, { 'accept-encoding': 'identity', ...(at > 0 && at < size && { range: `bytes=${at}-` }) });
  if (!response.headers.get('content-range')?.startsWith(`bytes ${at}-`)) {
    await out.truncate(0);
    at = 0;
  }
  onBytes(at);
  try {
    for await (const chunk of response.body ?? []) {
      await onDisk(() => out.appendFile(chunk));
      at += chunk.byteLength;
      if (at > size) break;
      onBytes(at);
    }
  } catch (thrown) {
    hub.signal.throwIfAborted();
    if (thrown instanceof TrainyardError) throw thrown;
    throw new Interrupted(`the connection was lost at ${at} of ${size} bytes of ${path}: ${messageOf(thrown)}`);
  }
  await onDisk(() => out.sync());
  if (at < size) throw new Interrupted(`the connection ended at ${at} of ${size} bytes of ${path}`);
}

async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? 0;
}

/** Of what is on the disk, whoever wrote it and however often it was interrupted. */
async function hashOf(path: string, { size, hash }: HubFile): Promise<string> {
  const digest = hash.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`);
  for await (const chunk of createReadStream(path)) digest.update(chunk);
  return digest.digest('hex');
}

/** A hard link where the system allows no symbolic ones. */
async function linkTo(blob: string, path: string): Promise<void> {
  await mkdir(dirname(path), { recursive: true });
  await rm(path, { force: true });
  await symlink(relative(dirname(path), blob), path).catch(() => link(blob, path));
}

/** A lost connection; what has arrived is kept. */
class Interrupted extends TrainyardError {
  constructor(message: string) {
    const hint = 'type the command again: it goes on where it stopped (behind a proxy: NODE_USE_ENV_PROXY=1)';
    super('DOWNLOAD_FAILED', message, { hint });
  }
}

function onDisk<T>(work: () => Promise<T>): Promise<T> {
  const hint = 'make room there, or set HF_HOME to a folder on another disk, then type the command again';
  return boundary('DOWNLOAD_FAILED', `cannot write to ${hubCache()}`, work, hint);
}

/** Also returns the query of the next page. Of that link nothing else is used, so that it leads to no other host. */
async function jsonAt<T>(hub: Hub, path: string, schema: z.ZodType<T>): Promise<[T, string?]> {
  const response = await ask(hub, path, { accept: 'application/json' });
  const text = await bodyOf(response).catch((thrown: unknown) => {
    throw unreachable(hub, thrown);
  });
  const { success, data } = schema.safeParse(parsedJson(text ?? ''));
  if (success) {
    const next = /<([^>]*)>;\s*rel="next"/.exec(response.headers.get('link') ?? '')?.[1];
    return next === undefined ? [data] : [data, new URL(next, hub.url).search];
  }
  const found = `${hub.url} answered something that is no reply of a hub: ${shortLine(text ?? '', 200)}`;
  throw new TrainyardError('DOWNLOAD_FAILED', found, { hint: 'a proxy may ask for a login; HF_ENDPOINT names another hub' });
}

/** Throws unless what was asked for comes. */
async function ask(hub: Hub, path: string, headers: Readonly<Record<string, string>>): Promise<Response> {
  const token = process.env['HF_TOKEN'];
  const authorization = token ? { authorization: `Bearer ${token}` } : {};
  const { signal } = hub;
  const response = await fetch(`${hub.url}/${path}`, { headers: { ...headers, ...authorization }, signal }).catch(
    (thrown: unknown) => {
      throw unreachable(hub, thrown);
    },
  );
  if (response.ok) return response;
  await response.body?.cancel();
  throw refusal(hub, response);
}

function unreachable({ url, signal }: Hub, thrown: unknown): unknown {
  if (signal.aborted) return signal.reason;
  const cause = thrown instanceof Error && thrown.cause !== undefined ? thrown.cause : thrown;
  return new Interrupted(`${url} cannot be reached: ${messageOf(cause)}`);
}

function refusal({ id, url }: Hub, { status, headers }: Response): TrainyardError {
  const answered = `${url} answered ${status} ${shortLine(headers.get('x-error-message') ?? '', 300)}`.trimEnd();
  if (status === 429 || status >= 500) return new Interrupted(answered);
  const access = process.env['HF_TOKEN'] ? 'give HF_TOKEN a token that has access' : `set HF_TOKEN (${url}/settings/tokens)`;
  const isGated = status === 403 || headers.get('x-error-code') === 'GatedRepo';
  const [what, hint] = isGated
    ? [`${id} is open only to those who were granted access`, `ask for access at ${url}/${id}, then ${access}`]
    : [`there is no model ${id}, or none that is public`, `look it up at ${url}/models; for a private one ${access}`];
  return new TrainyardError('DOWNLOAD_FAILED', `${what}: ${answered}`, { hint });
}

export function sizeText(bytes: number): string {
  return bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}
