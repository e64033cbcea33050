/**
 * Downloads a model of the Hugging Face hub into the local cache, in the layout of Hugging Face's own programs. By plain `fetch`, since
 * @huggingface/hub neither resumes nor verifies. A file is written as `blobs/<hash>.incomplete`, where the next call goes on, and gets its
 * name once size and hash are right. The snapshot's links come after all files, then `refs/main`: what is named there is whole. The token
 * goes to the hub only: `fetch` drops it where a large file is redirected to another host. A hub is not trusted: its names stay inside the
 * snapshot, and its sizes are checked before a file is begun.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { link, mkdir, open, readFile, rename, rm, stat, statfs, symlink } from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import { z } from 'zod';
import { printableLine, shortLine } from '../core/describe.ts';
import { boundary, messageOf, nearName, TrainyardError } from '../core/errors.ts';
import { parsedJson } from '../core/json.ts';
import { bodyOf } from '../gateway/model-server.ts';
import { shellWord } from '../settings/settings.ts';
import { takeLock, writeWhole } from '../store/files.ts';
import { FAMILIES, parseConfig } from './embedded/model/config.ts';
import { cacheFolder, hubCache, IS_GGUF } from './model-path.ts';

interface DownloadOptions {
  readonly signal: AbortSignal;
  /** Bytes of all files, including those that were there. */
  readonly onProgress: (file: string, done: number, total: number) => void;
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
/** `blobs`: folder for files under their hashes. */
type Hub = DownloadOptions & Readonly<Record<'id' | 'url' | 'blobs', string>>;

const TEXTS = /^(?:(?:generation_)?config|tokenizer(?:_config)?|special_tokens_map|added_tokens)\.json$|^chat_template\.jinja$/;
const WEIGHTS = 'model.safetensors';
const INDEX = 'model.safetensors.index.json';
const MOST_PAGES = 100;
const MOST_FILES = 100_000;
const LONGEST_PATH = 1_000;
/** Of a JSON file or a template, which are read whole. The largest tokenizers have half as much. */
const MOST_TEXT_BYTES = 64e6;

const indexSchema = z.object({ weight_map: z.record(z.string(), z.string()) });
const commitSchema = z.object({
  sha: z.string().regex(/^[0-9a-f]{40}$/),
  // What the hub found in the GGUF files of the repository.
  gguf: z.object({ architecture: z.string() }).nullish().catch(undefined),
});
const treeSchema = z.array(
  z.object({
    type: z.string(),
    path: z.string(),
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
    for (const file of all) await linkTo(join(hub.blobs, file.hash), snapshot, file.path);
    await mkdir(join(folder, 'refs'), { recursive: true });
    await writeWhole(join(folder, 'refs', 'main'), sha);
  });
  const name = one === undefined ? id : `${id}:${one.path}`;
  return { name, path: join(snapshot, one?.path ?? ''), commit: sha, bytes: bytesOf(all) };
}

const bytesOf = (files: readonly HubFile[]): number => files.reduce((sum, { size }) => sum + size, 0);
const namedIn = (files: readonly HubFile[], path: string): HubFile | undefined => files.find((file) => file.path === path);

async function filesAt(hub: Hub, sha: string): Promise<readonly HubFile[]> {
  const found: HubFile[] = [];
  const tree = `api/models/${hub.id}/tree/${sha}`;
  let query = '?recursive=true';
  for (let page = 0; query !== '' && page < MOST_PAGES; page++) {
    const [entries, next]: [z.infer<typeof treeSchema>, string] = await jsonAt(hub, tree + query, treeSchema);
    const files = entries.filter(({ type }) => type === 'file');
    found.push(...files.map(({ path, size, oid, lfs }) => ({ path, size: lfs?.size ?? size, hash: lfs?.oid ?? oid })));
    query = next;
    const odd = files.find(({ path }) => !isInside(path))?.path;
    if (odd !== undefined)
      throw noSuchHub(hub, `lists the file ${shortLine(JSON.stringify(odd), 200)}, which is no name for one`);
    if (found.length > MOST_FILES) throw noSuchHub(hub, `lists more than ${MOST_FILES} files`);
  }
  return found;
}

/** Whether a name becomes a path inside the folder that it is joined to, and can be shown in one line. */
function isInside(path: string): boolean {
  const isPlain = path.length <= LONGEST_PATH && printableLine(path) === path && !path.includes('\\');
  return isPlain && path.split('/').every((part) => !['', '.', '..'].includes(part));
}

/** Throws MODEL_INVALID, or USAGE where one of several GGUF files must be named. */
function chosen(files: readonly HubFile[], gguf: string | undefined, id: string) {
  const has = (path: string): boolean => namedIn(files, path) !== undefined;
  const ggufs = files.filter(({ path }) => IS_GGUF.test(path));
  if (gguf === undefined && has('config.json') && (has(WEIGHTS) || has(INDEX))) {
    if (!has('tokenizer.json')) throw unusable(id, 'has no tokenizer.json');
    return { texts: files.filter(({ path }) => TEXTS.test(path)), one: undefined };
  }
  const one = gguf === undefined && ggufs.length === 1 ? ggufs[0] : namedIn(ggufs, gguf ?? '');
  if (one && /-\d{5}-of-\d{5}\.gguf$/.test(one.path)) throw unusable(id, `holds ${one.path}, which is only a part of a model`);
  if (one !== undefined) return { texts: [], one };
  if (ggufs.length === 0) {
    throw unusable(id, has('adapter_config.json') ? 'holds only an adapter of another model' : 'holds no such files');
  }
  const paths = ggufs.map(({ path }) => path);
  const list = shortLine(ggufs.map(({ path, size }) => `${path} (${sizeText(size)})`).join(', '), 2_000);
  const found = gguf === undefined ? `${ggufs.length} GGUF files` : `no GGUF file ${gguf}`;
  const hint = `name one: trainyard model get ${id} ${shellWord(nearName(gguf ?? '', paths) ?? paths[0]!)}`;
  throw new TrainyardError('USAGE', `${id} holds ${found}: ${list}`, hint);
}

function unusable(id: string, what: string): TrainyardError {
  const hint = 'expected config.json, tokenizer.json and model.safetensors (or its index and shards), or a whole GGUF file';
  return new TrainyardError('MODEL_INVALID', `${id} ${what}`, hint);
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
    throw new TrainyardError(thrown.code, `${hub.id}: ${thrown.message}; its weights were not downloaded`, thrown.hint!);
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
  for (const { path, size } of files) {
    if (size === 0 && !path.endsWith('.jinja')) throw unusable(hub.id, `has an empty ${path}`);
    const most = TEXTS.test(path) || path === INDEX ? MOST_TEXT_BYTES : Infinity;
    if (size > most) throw unusable(hub.id, `has a ${path} of ${sizeText(size)}, expected ${sizeText(most)} at most`);
  }
  await checkSpace(hub, files);
  const total = bytesOf(files);
  let done = 0;
  for (const file of files) {
    const blob = join(hub.blobs, file.hash);
    const onBytes = (bytes: number): void => hub.onProgress(file.path, done + bytes, total);
    const isThere = (await sizeOf(blob)) === file.size && (await hashOf(blob, file)) === file.hash;
    if (!isThere) await downloadFile(hub, sha, file, onBytes);
    done += file.size;
  }
}

/** Throws unless what is missing of the files, by the sizes that the hub announced, fits on the disk. */
async function checkSpace({ id, blobs }: Hub, files: readonly HubFile[]): Promise<void> {
  let missing = 0;
  for (const { hash, size } of files) {
    const has = Math.max(await sizeOf(join(blobs, hash)), await sizeOf(join(blobs, `${hash}.incomplete`)), 0);
    missing += Math.max(0, size - has);
  }
  const { bavail, bsize, blocks } = await onDisk(() => statfs(blobs));
  const free = bavail * bsize;
  // A file system that knows no sizes says 0 blocks.
  if (blocks === 0 || missing <= free) return;
  const message = `${id} needs ${sizeText(missing)} more, and ${hubCache()} has ${sizeText(free)} free`;
  throw new TrainyardError('DOWNLOAD_FAILED', message, ROOM);
}

async function downloadFile(hub: Hub, sha: string, file: HubFile, onBytes: (bytes: number) => void): Promise<void> {
  const partial = join(hub.blobs, `${file.hash}.incomplete`);
  for (let had = -1; ; ) {
    try {
      await goOn(hub, sha, file, partial, onBytes);
      break;
    } catch (thrown) {
      // As often as connections are lost, but not for nothing.
      const has = await sizeOf(partial);
      if (!(thrown instanceof Interrupted) || has <= had) throw thrown;
      had = has;
    }
  }
  const found = await hashOf(partial, file);
  if (found === file.hash) return await onDisk(() => rename(partial, join(hub.blobs, file.hash)));
  await rm(partial);
  const message = `${file.path} is not the file that ${hub.url} lists: expected the hash ${file.hash}, found ${found}; it was removed`;
  const hint = 'type the command again; if that does not help, a proxy or a mirror (HF_ENDPOINT) changes files';
  throw new TrainyardError('DOWNLOAD_FAILED', message, hint);
}

/** Appends what is missing of the file. Throws Interrupted if the connection is lost. */
async function goOn(hub: Hub, sha: string, { path, size }: HubFile, partial: string, onBytes: (bytes: number) => void) {
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
    throw thrown instanceof TrainyardError ? thrown : unreachable(hub, thrown);
  }
  await onDisk(() => out.sync());
  if (at < size) throw new Interrupted(`the connection ended at ${at} of ${size} bytes of ${path}`);
}

/** -1 if there is none. */
async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? -1;
}

/** Of what is on the disk, whoever wrote it and however often it was interrupted. */
async function hashOf(path: string, { size, hash }: HubFile): Promise<string> {
  const digest = hash.length === 64 ? createHash('sha256') : createHash('sha1').update(`blob ${size}\0`);
  for await (const chunk of createReadStream(path)) digest.update(chunk);
  return digest.digest('hex');
}

/** A hard link where the system allows no symbolic ones. */
async function linkTo(blob: string, snapshot: string, name: string): Promise<void> {
  const path = join(snapshot, name);
  if (relative(snapshot, path).startsWith('..')) throw new Error(`${path} is not inside the snapshot`);
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

const ROOM = 'make room there, or set HF_HOME to a folder on another disk, then type the command again';

function onDisk<T>(work: () => Promise<T>): Promise<T> {
  return boundary('DOWNLOAD_FAILED', `cannot write to ${hubCache()}`, work, ROOM);
}

/** Also returns the query of the next page. Of that link nothing else is used, so that it leads to no other host. */
async function jsonAt<T>(hub: Hub, path: string, schema: z.ZodType<T>): Promise<[T, string]> {
  const response = await ask(hub, path, { accept: 'application/json' });
  const text = await bodyOf(response).catch((thrown: unknown) => Promise.reject(unreachable(hub, thrown)));
  const { success, data } = schema.safeParse(parsedJson(text ?? ''));
  const next = /<([^>]*)>;\s*rel="next"/.exec(response.headers.get('link') ?? '')?.[1];
  if (success) return [data, (next && URL.parse(next, hub.url)?.search) || ''];
  if (text === undefined) throw noSuchHub(hub, 'answered with more than a hub’s reply can have');
  throw noSuchHub(hub, `answered something that is no reply of a hub: ${shortLine(text, 200)}`);
}

function noSuchHub({ url }: Hub, what: string): TrainyardError {
  const hint = 'a proxy may ask for a login; HF_ENDPOINT names another hub';
  return new TrainyardError('DOWNLOAD_FAILED', `${url} ${what}`, hint);
}

/** Throws unless what was asked for comes. */
async function ask(hub: Hub, path: string, headers: Readonly<Record<string, string>>): Promise<Response> {
  const { HF_TOKEN: token } = process.env;
  const request = { headers: { ...headers, ...(token && { authorization: `Bearer ${token}` }) }, signal: hub.signal };
  const asking = fetch(`${hub.url}/${path}`, request);
  const response = await asking.catch((thrown: unknown) => Promise.reject(unreachable(hub, thrown)));
  if (response.ok) return response;
  await response.body?.cancel();
  throw refusal(hub, response);
}

function unreachable({ url, signal }: Hub, thrown: unknown): unknown {
  const cause = thrown instanceof Error && thrown.cause !== undefined ? thrown.cause : thrown;
  return signal.aborted ? signal.reason : new Interrupted(`${url} cannot be reached: ${messageOf(cause)}`);
}

function refusal({ id, url }: Hub, { status, headers }: Response): TrainyardError {
  const answered = `${url} answered ${status} ${shortLine(headers.get('x-error-message') ?? '', 300)}`.trimEnd();
  if (status === 429 || status >= 500) return new Interrupted(answered);
  const access = process.env['HF_TOKEN'] ? 'give HF_TOKEN a token that has access' : `set HF_TOKEN (${url}/settings/tokens)`;
  const [what, hint] =
    status === 403 || headers.get('x-error-code') === 'GatedRepo'
      ? [`${id} is open only to those who were granted access`, `ask for access at ${url}/${id}, then ${access}`]
      : [`there is no model ${id}, or none that is public`, `look it up at ${url}/models; for a private one ${access}`];
  return new TrainyardError('DOWNLOAD_FAILED', `${what}: ${answered}`, hint);
}

export function sizeText(bytes: number): string {
  return bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;
}
