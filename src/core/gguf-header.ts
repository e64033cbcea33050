/**
 * The header of a GGUF file: its metadata, and where each tensor lies. `@huggingface/gguf` parses it; what that library believes without
 * looking is checked here. Reads a file that the caller opened. Whether the tensors lie within the file is for who reads them.
 */
import type { FileHandle } from 'node:fs/promises';
import { boundary, TrainyardError } from './errors.ts';

export interface GgufTensor {
  /** As the file calls it. */
  readonly name: string;
  /** The length of a row first: the other way round than in Hugging Face's files. */
  readonly dimensions: readonly number[];
  /** `Q4_K`, `F16` …; `type 99` if the library has no name for it. */
  readonly type: string;
  /** In bytes, from the beginning of the file. */
  readonly start: number;
}

export interface GgufHeader {
  readonly metadata: ReadonlyMap<string, unknown>;
  readonly tensors: readonly GgufTensor[];
  readonly fileBytes: number;
}

/** What we use of the library, in our own words: its published types do not resolve under Node's module resolution. */
interface Library {
  gguf(uri: string, options: { readonly typedMetadata: true; readonly fetch: FetchRange }): Promise<Parsed>;
  readonly GGMLQuantizationType: Readonly<Record<number, string>>;
}
type FetchRange = (uri: string, request: { readonly headers: { readonly Range: string } }) => Promise<Response>;
type Info = { readonly name: string; readonly shape: readonly bigint[]; readonly dtype: number; readonly offset: bigint };
interface Parsed {
  readonly typedMetadata: Readonly<Record<string, { readonly value: unknown; readonly type: number; readonly subType?: number }>>;
  readonly tensorInfos: readonly Info[];
  readonly tensorDataOffset: bigint;
  readonly tensorInfoByteRange: readonly [begin: number, end: number];
  readonly littleEndian: boolean;
}

/** The library asks for 2 MB at a time, and for the next as soon as less than half a megabyte is left. */
const MOST_AFTER_THE_END = 1_000_000;

/** Throws MODEL_INVALID. `path` is used only in messages. */
export async function readGgufHeader(file: FileHandle, path: string): Promise<GgufHeader> {
  const { size, isFile } = await file.stat().then((stats) => ({ size: stats.size, isFile: stats.isFile() }));
  if (!isFile) throw invalidGguf(path, 'is not a regular file', 'name a .gguf file');
  const { gguf, GGMLQuantizationType: types } = (await import('@huggingface/gguf')) as unknown as Library;
  // Given a path, the library takes what is missing at the end for zeros, up to 50 MB of them. So it reads through us.
  const fetchRange: FetchRange = async (_, { headers }) => {
    const [first = 0, last = 0] = headers.Range.match(/\d+/g)!.map(Number);
    if (first > size + MOST_AFTER_THE_END) throw new Error('it ends before its header does');
    const bytes = Buffer.alloc(Math.max(0, Math.min(last + 1, size) - first));
    await file.read(bytes, 0, bytes.length, first);
    return new Response(bytes);
  };
  const read = () => gguf('http://file', { typedMetadata: true, fetch: fetchRange });
  const parsed = await boundary('MODEL_INVALID', `${path} cannot be read as a GGUF file`, read, DAMAGED);
  checkHeader(parsed, size, path);
  return {
    metadata: new Map(Object.entries(parsed.typedMetadata).map(([key, { value }]) => [key, withoutBigints(value)])),
    tensors: parsed.tensorInfos.map(({ name, shape, dtype, offset }) => ({
      name,
      dimensions: shape.map(Number),
      type: types[dtype] ?? `type ${dtype}`,
      start: Number(parsed.tensorDataOffset + offset),
    })),
    fileBytes: size,
  };
}

function checkHeader({ typedMetadata, tensorInfoByteRange, littleEndian }: Parsed, fileBytes: number, path: string): void {
  const { version, tensor_count, kv_count, ...entries } = typedMetadata;
  if (!littleEndian || version!.value === 1) {
    const found = littleEndian ? 'version 1' : 'big-endian';
    throw invalidGguf(path, `is ${found}, expected GGUF version 2 or 3, little-endian`, 'convert the model again');
  }
  const [metadataEnd, headerEnd] = tensorInfoByteRange;
  if (headerEnd > fileBytes) throw invalidGguf(path, `has ${fileBytes} bytes, expected a header of ${headerEnd} and tensors`);
  // Where 2 MB end within the last text of a list, the library cuts it off and says nothing. The sum shows it.
  let bytes = 24;
  for (const [key, { value, type, subType }] of Object.entries(entries)) {
    bytes += bytesOf(key) + 4;
    if (!Array.isArray(value)) bytes += bytesOf(value, type);
    else bytes += value.reduce<number>((sum, item) => sum + bytesOf(item, subType), 12);
  }
  if (bytes === metadataEnd) return;
  throw invalidGguf(path, `has ${metadataEnd} bytes of metadata, of which ${bytes} could be read as texts and numbers`);
}

/** Sizes of numbers by their type: u8, i8, u16, i16, u32, i32, f32, bool, (text, list,) u64, i64, f64. */
const NUMBER_BYTES = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];

function bytesOf(value: unknown, type = 0): number {
  return typeof value === 'string' ? 8 + Buffer.byteLength(value) : NUMBER_BYTES[type]!;
}

function withoutBigints(value: unknown): unknown {
  if (Array.isArray(value)) return typeof value[0] === 'bigint' ? value.map(Number) : value;
  return typeof value === 'bigint' ? Number(value) : value;
}

const DAMAGED = 'the file is damaged, or was not downloaded completely: use another copy';

export function invalidGguf(path: string, found: string, hint = DAMAGED): TrainyardError {
  return new TrainyardError('MODEL_INVALID', `${path} ${found}`, hint);
}
