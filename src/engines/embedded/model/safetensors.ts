/**
 * The safetensors file format: 8 bytes of header length, a JSON header, one data section. Reading checks everything before using any data:
 * lengths, dtypes, and that the tensors tile the data section without gaps or overlaps, as the format demands. Tensors are read by rows, so
 * that a large file is never held as a whole. Reads F32, F16 and BF16; writes F32. Knows nothing about models.
 */
import { type FileHandle, open } from 'node:fs/promises';
import { messageOf, TrainyardError } from '../../../core/errors.ts';
import { isObject } from '../../../core/json.ts';
import type { ByName } from '../../../core/types.ts';

export interface Tensor {
  readonly name: string;
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

const BYTES = { F32: 4, F16: 2, BF16: 2 } as const;
type Dtype = keyof typeof BYTES;

interface Entry {
  readonly name: string;
  readonly dtype: Dtype;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
}

/** Larger headers are not of models that fit into memory. */
const MOST_HEADER = 100_000_000;
/** The most that one call to the system reads. */
const MOST_READ = 2 ** 30;

export class SafetensorsFile implements AsyncDisposable {
  readonly path: string;
  readonly entries: ReadonlyMap<string, Entry>;
  readonly metadata: ByName<string>;
  readonly #handle: FileHandle;
  readonly #dataStart: number;

  /** Model folders are downloaded: only a regular file is read, because a link to a device, or a pipe, would not end. */
  static async open(path: string): Promise<SafetensorsFile> {
    const handle = await open(path, 'r').catch((cause: unknown) => {
      throw new TrainyardError('SAFETENSORS_INVALID', `${path} cannot be read: ${messageOf(cause)}`, {
        cause,
        hint: 'the file is written by save()',
      });
    });
    try {
      const found = await handle.stat();
      if (!found.isFile()) throw new TrainyardError('SAFETENSORS_INVALID', `${path} cannot be read: it is not a regular file`);
      return new SafetensorsFile(path, handle, await readHeader(handle, found.size, path), found.size);
    } catch (thrown) {
      await handle.close();
      throw thrown;
    }
  }

  private constructor(path: string, handle: FileHandle, { header, dataStart }: Header, size: number) {
    this.path = path;
    this.#handle = handle;
    this.#dataStart = dataStart;
    const { __metadata__: metadata, ...described } = header;
    const entries = Object.entries(described).map(([name, value]) => decodeEntry(name, value, path));
    checkTiling(entries, size - dataStart, path);
    this.entries = new Map(entries.map((entry) => [entry.name, entry]));
    this.metadata = decodeMetadata(metadata, path);
  }

  /** Rows of the first dimension. */
  async rows(name: string, first: number, count: number): Promise<Float32Array> {
    const entry = this.entries.get(name);
    const [rows = 1, ...rest] = entry?.shape ?? [];
    if (entry === undefined || first + count > rows)
      throw invalid(this.path, `has no rows ${first} to ${first + count} of ${name}`);
    const width = rest.reduce((product, n) => product * n, 1) * BYTES[entry.dtype];
    const bytes = new Uint8Array(count * width);
    await readFully(this.#handle, bytes, this.#dataStart + entry.begin + first * width, this.path);
    return floatsOf(bytes, entry.dtype);
  }

  async tensor(name: string): Promise<Tensor> {
    const { shape } = this.entries.get(name)!;
    return { name, shape, data: await this.rows(name, 0, shape[0] ?? 1) };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.close();
  }
}

export interface SafetensorsContent {
  readonly tensors: ReadonlyMap<string, Tensor>;
  readonly metadata: ByName<string>;
}

export async function readSafetensors(path: string): Promise<SafetensorsContent> {
  await using file = await SafetensorsFile.open(path);
  const tensors = new Map<string, Tensor>();
  for (const name of file.entries.keys()) tensors.set(name, await file.tensor(name));
  return { tensors, metadata: file.metadata };
}

export async function writeSafetensors(path: string, tensors: readonly Tensor[], metadata: ByName<string>): Promise<void> {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let offset = 0;
  for (const { name, shape, data } of tensors) {
    header[name] = { dtype: 'F32', shape, data_offsets: [offset, offset + data.byteLength] };
    offset += data.byteLength;
  }
  const text = JSON.stringify(header);
  // The data section starts at a multiple of 8 bytes; the header is padded with spaces, as other writers do.
  const json = Buffer.from(text.padEnd(text.length + ((8 - (Buffer.byteLength(text) % 8)) % 8)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  await using file = await open(path, 'w');
  await file.writeFile(Buffer.concat([length, json]));
  // Copied, because file writes do not accept views of shared memory.
  for (const { data } of tensors) await file.writeFile(Buffer.from(new Float32Array(data).buffer));
}

interface Header {
  readonly header: ByName<unknown>;
  readonly dataStart: number;
}

async function readHeader(handle: FileHandle, size: number, path: string): Promise<Header> {
  if (size < 8) throw invalid(path, `is ${size} bytes long, expected at least 8`);
  const start = Buffer.alloc(8);
  await readFully(handle, start, 0, path);
  const length = start.readBigUInt64LE(0);
  if (length > BigInt(size - 8)) {
    throw invalid(path, `announces a header of ${length} bytes, but only ${size - 8} follow: the file is truncated`);
  }
  if (length > BigInt(MOST_HEADER)) throw invalid(path, `announces a header of ${length} bytes, expected at most ${MOST_HEADER}`);
  const text = Buffer.alloc(Number(length));
  await readFully(handle, text, 8, path);
  try {
    const header: unknown = JSON.parse(text.toString());
    if (isObject(header)) return { header, dataStart: 8 + text.length };
  } catch (cause) {
    throw invalid(path, 'has a header that is not JSON', cause);
  }
  throw invalid(path, 'has a header that is not a JSON object');
}

async function readFully(handle: FileHandle, bytes: Uint8Array, position: number, path: string): Promise<void> {
  for (let done = 0; done < bytes.length; ) {
    const { bytesRead } = await handle.read(bytes, done, Math.min(MOST_READ, bytes.length - done), position + done);
    if (bytesRead === 0) throw invalid(path, 'became shorter while it was read');
    done += bytesRead;
  }
}

function decodeEntry(name: string, value: unknown, path: string): Entry {
  const fields = isObject(value) ? value : {};
  const { dtype, shape, data_offsets: offsets } = fields;
  if (typeof dtype !== 'string' || !Object.hasOwn(BYTES, dtype)) {
    throw invalid(path, `tensor ${name} has dtype ${JSON.stringify(dtype)}, expected ${Object.keys(BYTES).join(', ')}`);
  }
  if (!isCounts(shape)) throw invalid(path, `tensor ${name} has shape ${JSON.stringify(shape)}, expected sizes`);
  if (!isCounts(offsets) || offsets.length !== 2) {
    throw invalid(path, `tensor ${name} has data_offsets ${JSON.stringify(offsets)}, expected [begin, end]`);
  }
  const [begin, end] = offsets as [number, number];
  const bytes = shape.reduce((product, n) => product * n, 1) * BYTES[dtype as Dtype];
  if (end - begin !== bytes) {
    throw invalid(
      path,
      `tensor ${name} of shape [${shape.join(', ')}] needs ${bytes} bytes, its data_offsets give ${end - begin}`,
    );
  }
  return { name, dtype: dtype as Dtype, shape, begin, end };
}

function checkTiling(entries: readonly Entry[], dataLength: number, path: string): void {
  let position = 0;
  for (const { name, begin, end } of [...entries].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
    if (begin !== position) {
      throw invalid(
        path,
        `tensor ${name} begins at byte ${begin} of the data, expected ${position}: tensors overlap or leave a gap`,
      );
    }
    position = end;
  }
  if (position !== dataLength) {
    throw invalid(path, `describes ${position} bytes of data, found ${dataLength}: the file is truncated or has a tail`);
  }
}

function decodeMetadata(metadata: unknown, path: string): ByName<string> {
  if (metadata === undefined) return {};
  if (isObject(metadata) && Object.values(metadata).every((value) => typeof value === 'string')) {
    return metadata as Record<string, string>;
  }
  throw invalid(path, 'has __metadata__ that is not a map of strings');
}

function floatsOf(bytes: Uint8Array<ArrayBuffer>, dtype: Dtype): Float32Array<ArrayBuffer> {
  if (dtype === 'F32') return new Float32Array(bytes.buffer);
  const halves = new Uint16Array(bytes.buffer);
  return dtype === 'BF16' ? fromBfloat16(halves) : fromFloat16(halves);
}

export function fromBfloat16(halves: Uint16Array): Float32Array<ArrayBuffer> {
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) words[i] = halves[i]! << 16;
  return new Float32Array(words.buffer);
}

let float16: Float32Array | undefined;

export function fromFloat16(halves: Uint16Array): Float32Array<ArrayBuffer> {
  float16 ??= Float32Array.from({ length: 65_536 }, (_, bits) => valueOfFloat16(bits));
  const floats = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) floats[i] = float16[halves[i]!]!;
  return floats;
}

function valueOfFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function isCounts(value: unknown): value is readonly number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}

function invalid(path: string, found: string, cause?: unknown): TrainyardError {
  return new TrainyardError('SAFETENSORS_INVALID', `${path} ${found}`, {
    hint: 'the file is damaged or was not written completely: use another copy or an earlier checkpoint',
    cause,
  });
}
