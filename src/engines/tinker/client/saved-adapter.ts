/**
 * The adapter of a checkpoint whose weights are at a Tinker server, as a PEFT folder on this machine. Servers hand out archives of weights
 * for sampling, not of training state, so the state is loaded into a new model and saved for sampling first. From an archive, two files are
 * taken by their names and everything else is ignored, so nothing in it chooses where something is written. Sizes are bounded.
 */
import { randomUUID } from 'node:crypto';
import { copyFile, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { gunzip } from 'node:zlib';
import { boundary, messageOf, TrainyardError } from '../../../core/errors.ts';
import { isObject, parsedJson } from '../../../core/json.ts';
import { readSafetensors } from '../../embedded/model/safetensors.ts';
import { TinkerConnection } from './connection.ts';
import { readSavedState } from './saved-state.ts';
import { TinkerModel } from './tinker-model.ts';
import { access } from './tinker-policy.ts';

const CONFIG = 'adapter_config.json';
const WEIGHTS = 'adapter_model.safetensors';
/** Of an archive, before and after decompression. */
const MOST_BYTES = 2 ** 31 - 1;
const DOWNLOAD_MS = 600_000;
const BLOCK = 512;

/** The folder is removed by disposing of what this returns. Throws POLICY_UNREACHABLE, POLICY_REFUSED if the server has no such state or gives no archives, and POLICY_GARBLED. */
export async function fetchSavedAdapter(checkpoint: string, stop?: AbortSignal) {
  const state = await readSavedState(checkpoint);
  if (state === undefined) throw new TrainyardError('MODEL_INVALID', `${checkpoint} names no weights at a Tinker server`);
  const settings = access(process.env['TINKER_BASE_URL'] || state.server);
  const archive = await archiveOf({ ...state, ...settings }, stop);
  const files = await readArchive(archive, [CONFIG, WEIGHTS]);
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-adapter-'));
  const fetched = { folder, [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true }) };
  try {
    for (const name of await readdir(checkpoint)) {
      if (name !== 'tinker.json' && name !== 'checkpoint.json') await copyFile(join(checkpoint, name), join(folder, name));
    }
    await writeFile(join(folder, WEIGHTS), files.get(WEIGHTS)!);
    await writeFile(join(folder, CONFIG), await configOf(files.get(CONFIG)!, folder));
    return fetched;
  } catch (thrown) {
    await fetched[Symbol.asyncDispose]();
    throw thrown;
  }
}

/** Servers leave out which modules are adapted, and PEFT then adapts only some. */
async function configOf(text: Buffer, folder: string): Promise<string> {
  const config = parsedJson(text.toString());
  if (!isObject(config)) throw garbled(`${CONFIG} in the archive is not a JSON object`);
  const { tensors } = await readSafetensors(join(folder, WEIGHTS));
  const modules = new Set([...tensors.keys()].flatMap((name) => /\.(\w+)\.lora_[AB]\.weight$/.exec(name)?.[1] ?? []));
  return `${JSON.stringify({ ...config, target_modules: [...modules] }, null, 2)}\n`;
}

interface Saved {
  readonly baseURL: string;
  readonly apiKey: string;
  readonly baseModel: string;
  readonly loraRank: number;
  readonly path: string;
}

async function archiveOf({ baseURL, apiKey, baseModel, loraRank, path }: Saved, stop?: AbortSignal): Promise<Buffer> {
  await using connection = await TinkerConnection.open({ baseURL, apiKey, signal: stop });
  const model = await TinkerModel.create(connection, { baseModel, loraRank, seed: 0, path });
  const name = `export-${randomUUID()}`;
  const checkpoint = `training_runs/${model.id}/checkpoints`;
  try {
    await (await model.saveForSampler(name)).result;
    return await download(`${connection.address}/api/v1/${checkpoint}/${name}/archive`, apiKey, stop);
  } finally {
    await connection.mention('DELETE', `${checkpoint}/sampler_weights/${name}`);
    await model.unload();
  }
}

/** Servers redirect to where the bytes are. The key goes to the server itself only. */
async function download(url: string, apiKey: string, stop: AbortSignal | undefined): Promise<Buffer> {
  const signal = AbortSignal.any([AbortSignal.timeout(DOWNLOAD_MS), ...(stop ? [stop] : [])]);
  const get = (from: string) =>
    boundary('POLICY_UNREACHABLE', `cannot download ${new URL(url).pathname}`, () => {
      const headers = new URL(from).origin === new URL(url).origin ? { 'x-api-key': apiKey } : {};
      return fetch(from, { headers, redirect: 'manual', signal });
    });
  const first = await get(url);
  const location = first.headers.get('location');
  const reply = first.status >= 300 && first.status < 400 && location !== null ? await get(new URL(location, url).href) : first;
  if (!reply.ok || reply.body === null) {
    const found = `the server at ${new URL(url).origin} gave no archive of the weights (status ${reply.status})`;
    throw new TrainyardError(
      'POLICY_REFUSED',
      found,
      'a trainyard tinker server trains all parameters: export the model folder below its --state with --merged',
    );
  }
  const parts: Uint8Array[] = [];
  let bytes = 0;
  for await (const part of reply.body) {
    bytes += part.byteLength;
    if (bytes > MOST_BYTES) throw garbled(`the archive has more than ${MOST_BYTES} bytes`);
    parts.push(part);
  }
  return Buffer.concat(parts);
}

/** Reads these regular files at the top of a .tar.gz. Throws POLICY_GARBLED if one is missing or the archive is damaged. */
export async function readArchive(archive: Buffer, names: readonly string[]): Promise<ReadonlyMap<string, Buffer>> {
  const tar = await promisify(gunzip)(archive, { maxOutputLength: MOST_BYTES }).catch((thrown: unknown) => {
    throw garbled(`the archive cannot be decompressed: ${messageOf(thrown)}`);
  });
  const found = new Map<string, Buffer>();
  for (let at = 0; at + BLOCK <= tar.length && tar[at] !== 0; ) {
    const { name, kind, size } = headerOf(tar.subarray(at, at + BLOCK));
    at += BLOCK;
    if (size > tar.length - at) throw garbled(`the archive breaks off in ${JSON.stringify(name)}`);
    if (kind === 'file' && names.includes(name) && !found.has(name)) found.set(name, tar.subarray(at, at + size));
    at += Math.ceil(size / BLOCK) * BLOCK;
  }
  const missing = names.filter((name) => !found.has(name));
  if (missing.length > 0) throw garbled(`the archive holds no file ${missing.join(' and no file ')}`);
  return found;
}

function headerOf(block: Buffer) {
  const text = (from: number, to: number) => block.toString('latin1', from, to).replace(/\0.*$/s, '');
  const octal = (from: number, to: number): number => {
    const digits = text(from, to).trim();
    if (!/^[0-7]+$/.test(digits)) throw garbled('the archive is no tar file');
    return Number.parseInt(digits, 8);
  };
  const sum = block.reduce((total, byte, i) => total + (i >= 148 && i < 156 ? 0x20 : byte), 0);
  if (octal(148, 156) !== sum) throw garbled('the archive is no tar file');
  return { name: text(0, 100).replace(/^\.\//, ''), kind: /^0?$/.test(text(156, 157)) ? 'file' : 'other', size: octal(124, 136) };
}

function garbled(found: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', found);
}
