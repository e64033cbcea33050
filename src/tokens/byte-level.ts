/**
 * A fast encoder and decoder for byte-level BPE tokenizers, which nearly all models use today. Tests compare it with the library.
 *
 * Encoding splits the text into words with the library's own pattern, then looks each word up in a cache or merges its bytes.
 * `byteLevelEncoder` returns undefined for any definition with a part that it does not know exactly. Control tokens must have been removed
 * from the definition, and text must be well-formed.
 */
import * as huggingFace from '@huggingface/tokenizers';
import { z } from 'zod';
import { CONTROL } from '../core/json-machine.ts';
import type { Merge, TokenizerConfig, TokenizerDefinition } from './tokenizer-files.ts';

/** Words, and characters of each: some 25 MB at the very most, a fifth of it for usual text. */
const REMEMBERED_WORDS = 32_768;
const REMEMBERED_LENGTH = 24;

const off = z.literal([false, null]).optional();
const none = z.literal(['', null]).optional();

const bytes = { type: z.literal('ByteLevel'), add_prefix_space: z.literal(false), trim_offsets: z.boolean().optional() };
const ownWords = z.strictObject({ ...bytes, use_regex: z.literal(true).optional() });
const bytesOnly = z.strictObject({ ...bytes, use_regex: z.literal(false) });
const split = z.strictObject({
  type: z.literal('Split'),
  pattern: z.strictObject({ Regex: z.string() }),
  behavior: z.literal('Isolated'),
  invert: z.literal(false),
});
const digits = z.strictObject({ type: z.literal('Digits'), individual_digits: z.literal(true) });
const pair = z.union([z.tuple([split, bytesOnly]), z.tuple([digits, ownWords])]);
const words = z.strictObject({ type: z.literal('Sequence'), pretokenizers: pair });

/** Post-processors only add control tokens around the text, which this encoder never does. */
const item = z.union([
  z.strictObject({ SpecialToken: z.unknown() }),
  z.strictObject({ Sequence: z.looseObject({ id: z.literal('A') }) }),
]);
const once = z.array(item).refine((items) => items.filter((one) => 'Sequence' in one).length === 1);
const surrounding = z.union([
  z.looseObject({ type: z.literal('ByteLevel') }),
  z.looseObject({ type: z.literal('TemplateProcessing'), single: once }),
]);
const postProcessor = z.union([surrounding, z.looseObject({ type: z.literal('Sequence'), processors: z.array(surrounding) })]);

const knownDefinition = z.looseObject({
  normalizer: z.strictObject({ type: z.literal('NFC') }).nullable(),
  pre_tokenizer: z.union([ownWords, words]),
  post_processor: postProcessor.nullable(),
  model: z.strictObject({
    type: z.literal('BPE'),
    dropout: z.literal([0, null]).optional(),
    unk_token: z.null().optional(),
    continuing_subword_prefix: none,
    end_of_word_suffix: none,
    fuse_unk: off,
    byte_fallback: off,
    ignore_merges: z.boolean().optional(),
    vocab: z.unknown(),
    merges: z.unknown(),
  }),
});

const knownConfig = z.looseObject({ remove_space: off, do_lowercase_and_remove_accent: off });

type Words = z.infer<typeof knownDefinition>['pre_tokenizer'];

/** Which tokens the library knows. */
export interface Tokens {
  token_to_id(token: string): number | undefined;
  id_to_token(id: number): string | undefined;
}

/** `definition` has no control tokens and `library` was made from it. Undefined too if white space is an added token. */
export function byteLevelEncoder(
  definition: TokenizerDefinition,
  config: TokenizerConfig,
  library: Tokens,
): ((text: string) => number[]) | undefined {
  const known = knownDefinition.safeParse(definition);
  if (!known.success || !knownConfig.safeParse(config).success || definition.added_tokens.length > 0) return undefined;
  const { model, normalizer, pre_tokenizer } = known.data;
  // If two tokens share an id, only one of them counts.
  const idOf = (token: string): number | undefined => {
    const id = library.token_to_id(token);
    return Number.isInteger(id) && id! >= 0 && library.id_to_token(id!) === token ? id : undefined;
  };
  const byteSpelt = [...spelling().keys()];
  const idOfByte = byteSpelt.map((byte) => (library.token_to_id(byte) === undefined ? NONE : idOf(byte)));
  const merges = mergesOf(definition.model.merges ?? [], idOf);
  if (!merges || !idOfByte.every((id) => id !== undefined)) return undefined;

  const mergeBytes = bytePairEncoder(idOfByte, merges);
  const whole = (word: Buffer) => library.token_to_id(Array.from(word, (byte) => byteSpelt[byte]).join(''));
  const encodeWord = rememberWords((word) => {
    const id = model.ignore_merges ? whole(word) : undefined;
    const ids = id === undefined ? mergeBytes(word) : [id];
    // Some tokenizers lack bytes that their training texts lacked. Like the library, we leave them out.
    return ids.includes(NONE) ? ids.filter((one) => one !== NONE) : ids;
  });
  const wordsOf = splitter(pre_tokenizer);
  const normalize = (text: string) => (normalizer === null ? text : text.normalize('NFC'));

  return (text) => {
    const ids: number[] = [];
    for (const word of wordsOf(normalize(text))) {
      for (const id of encodeWord(word)) ids.push(id);
    }
    return ids;
  };
}

/** Undefined if merging two tokens gives something that is not a token. */
function mergesOf(merges: readonly Merge[], idOf: (token: string) => number | undefined): IdMerge[] | undefined {
  const known: IdMerge[] = [];
  for (const merge of merges) {
    // All merges must be written in the same form.
    if (typeof merge !== typeof merges[0]) return undefined;
    const [first = '', second = ''] = typeof merge === 'string' ? merge.split(' ', 2) : merge;
    const left = idOf(first);
    const right = idOf(second);
    // A part that is not a token never occurs, so neither does this pair; a byte does.
    if ((left === undefined && first.length === 1) || (right === undefined && second.length === 1)) return undefined;
    if (left === undefined || right === undefined) continue;
    const merged = idOf(first + second);
    if (merged === undefined) return undefined;
    known.push({ left, right, merged });
  }
  return known;
}

/** The library translates published patterns from Rust to JavaScript. Typed here because its own types do not resolve. */
interface Splitter {
  readonly pattern: RegExp;
  pre_tokenize_text(text: string): readonly string[];
}
type SplitterName = 'ByteLevelPreTokenizer' | 'SplitPreTokenizer';
const { ByteLevelPreTokenizer, SplitPreTokenizer } = huggingFace as unknown as Record<
  SplitterName,
  new (
    given: z.infer<typeof ownWords> | z.infer<typeof split>,
  ) => Splitter
>;

function splitter(given: Words): (text: string) => readonly string[] {
  if (given.type === 'ByteLevel') {
    const { pattern } = new ByteLevelPreTokenizer(given);
    return (text) => text.match(pattern) ?? [];
  }
  const [first, second] = given.pretokenizers;
  if (first.type === 'Digits') {
    const wordsOf = splitter(second as z.infer<typeof ownWords>);
    // The library takes only the digits 0 to 9 for digits; Hugging Face's own tokenizers take all of Unicode's.
    return (text) => text.split(/(\p{N})/u).flatMap(wordsOf);
  }
  const library = new SplitPreTokenizer(first);
  return (text) => {
    const found = text.match(library.pattern) ?? [];
    let length = 0;
    for (const word of found) length += word.length;
    // Text between the matches is a word too, but patterns hardly ever leave any.
    return length === text.length ? found : library.pre_tokenize_text(text);
  };
}

function rememberWords(encode: (word: Buffer) => readonly number[]): (word: string) => readonly number[] {
  const remembered = new Map<string, readonly number[]>();
  return (word) => {
    const before = remembered.get(word);
    if (before) return before;
    const spelt = Buffer.from(word);
    const ids = encode(spelt);
    if (word.length > REMEMBERED_LENGTH) return ids;
    if (remembered.size >= REMEMBERED_WORDS) remembered.clear();
    // A copy, because a slice keeps the whole text in memory.
    remembered.set(spelt.toString(), ids);
    return ids;
  };
}

/** The character that stands for each byte: a printable byte for itself, the others U+0100 and up. In the order of the bytes. */
function spelling(): ReadonlyMap<string, number> {
  const isPrintable = (byte: number) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
  const bytes = new Map<string, number>();
  let others = 0;
  for (let byte = 0; byte < 256; byte++) bytes.set(String.fromCodePoint(isPrintable(byte) ? byte : 256 + others++), byte);
  return bytes;
}

interface Spelling {
  /** Text of an id that spells no bytes. */
  verbatim(id: number): string | undefined;
  /** How the bytes of an id are spelt. */
  spelt(id: number): string;
}

/**
 * Each id's bytes are looked up and put together, instead of spelling every byte as a character and reading it back. Bytes that are no UTF-8
 * show as U+FFFD. Texts that stand for themselves (control tokens) end a run of bytes.
 */
export function byteLevelDecoder({ verbatim, spelt }: Spelling): (ids: Iterable<number>) => string {
  const byteOf = spelling();
  const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });
  const known = new Map<number, string | Uint8Array>();
  let run = new Uint8Array(1024);
  let length = 0;

  const look = (id: number): string | Uint8Array => {
    const found = verbatim(id) ?? Uint8Array.from(spelt(id), (character) => byteOf.get(character) ?? 0);
    known.set(id, found);
    return found;
  };
  const add = (bytes: Uint8Array) => {
    if (length + bytes.length > run.length) {
      const longer = new Uint8Array(2 * (length + bytes.length));
      longer.set(run);
      run = longer;
    }
    run.set(bytes, length);
    length += bytes.length;
  };
  const endRun = (): string => {
    const text = length === 0 ? '' : utf8.decode(run.subarray(0, length));
    length = 0;
    return text;
  };

  return (ids) => {
    let text = '';
    length = 0;
    for (const id of ids) {
      const found = known.get(id) ?? look(id);
      if (typeof found === 'string') text += endRun() + found;
      else add(found);
    }
    return text + endRun();
  };
}

/** The bytes of one id. Those of a control token, and of an id that is no token, begin with `CONTROL`; white space among them is text. */
export function byteLevelSpeller({ verbatim, spelt }: Spelling): (id: number) => readonly number[] {
  const byteOf = spelling();
  return (id) => {
    const text = verbatim(id);
    if (text === undefined) return Array.from(spelt(id), (character) => byteOf.get(character) ?? 0);
    return [...(text.trim() === '' ? [] : [CONTROL]), ...new TextEncoder().encode(text)];
  };
}

// ── byte-pair merges ──────────────────────────────────────────────────────────────────────────────────────────────────

// Merges the neighbours of the lowest rank first, the leftmost of equals, until no pair can be merged. Takes O(n log n) without recursion, so
// a word may be megabytes long.

/** Two neighbouring ids and the id that they merge into. */
export interface IdMerge {
  readonly left: number;
  readonly right: number;
  readonly merged: number;
}

/** Words of up to this many bytes share one workspace. */
const SHORT = 1024;
const NONE = -1;

/** `idOfByte` has 256 ids, NONE for a byte without a token; `merges` are ordered by rank. If a pair occurs twice, the later merge counts. */
export function bytePairEncoder(idOfByte: readonly number[], merges: readonly IdMerge[]): (bytes: Uint8Array) => number[] {
  const rankOf = pairTable(merges);
  const mergedAs = Int32Array.from(merges, ({ merged }) => merged);
  const short = workspace(SHORT);

  return (bytes) => {
    const length = bytes.length;
    const { id, before, after, rank, queue } = length <= SHORT ? short : workspace(length);
    for (let i = 0; i < length; i++) {
      id[i] = idOfByte[bytes[i]!]!;
      before[i] = i - 1;
      after[i] = i + 1;
    }
    // Keys sort by rank, then by place. A key is valid while the pair at its place has its rank: tokens only grow, so no pair comes back.
    const look = (at: number) => {
      const right = after[at]!;
      const found = right < length ? rankOf(id[at]!, id[right]!) : NONE;
      rank[at] = found;
      if (found !== NONE) queue.add(found * length + at);
    };
    for (let i = 0; i < length; i++) look(i);

    for (let key = queue.take(); key !== NONE; key = queue.take()) {
      const at = key % length;
      const found = (key - at) / length;
      if (rank[at] !== found) continue;
      const right = after[at]!;
      const next = after[right]!;
      id[at] = mergedAs[found]!;
      rank[right] = NONE;
      after[at] = next;
      if (next < length) before[next] = at;
      look(at);
      if (before[at] !== NONE) look(before[at]!);
    }

    const ids: number[] = [];
    for (let at = 0; at < length; at = after[at]!) ids.push(id[at]!);
    return ids;
  };
}

/** For each place: the id that begins there, the places of its neighbours, and the rank of the pair with the next id. */
function workspace(length: number) {
  const numbers = () => new Int32Array(length);
  // A merge takes one key out and puts in two at most, and there are fewer merges than bytes.
  return { id: numbers(), before: numbers(), after: numbers(), rank: numbers(), queue: smallestFirst(2 * length) };
}

/** A binary heap. `take` returns NONE when it is empty. */
function smallestFirst(room: number) {
  const keys = new Float64Array(room);
  let size = 0;

  function add(key: number): void {
    let at = size++;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (keys[parent]! <= key) break;
      keys[at] = keys[parent]!;
      at = parent;
    }
    keys[at] = key;
  }

  function take(): number {
    if (size === 0) return NONE;
    const first = keys[0]!;
    const last = keys[--size]!;
    let at = 0;
    for (let child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && keys[child + 1]! < keys[child]!) child++;
      if (keys[child]! >= last) break;
      keys[at] = keys[child]!;
      at = child;
    }
    keys[at] = last;
    return first;
  }

  return { add, take };
}

/** Two ids → rank or NONE: an open hash table at most half full, since a Map with a key for each pair takes several times as long. */
function pairTable(merges: readonly IdMerge[]): (left: number, right: number) => number {
  const slots = 2 ** Math.ceil(Math.log2(2 * merges.length + 2));
  const lefts = new Int32Array(slots).fill(NONE);
  const rights = new Int32Array(slots);
  const ranks = new Int32Array(slots).fill(NONE);

  function slotOf(left: number, right: number): number {
    const mixed = Math.imul(Math.imul(left, 0x9e3779b1) + right, 0x85ebca6b);
    let slot = (mixed ^ (mixed >>> 15)) & (slots - 1);
    while (lefts[slot] !== NONE && (lefts[slot] !== left || rights[slot] !== right)) slot = (slot + 1) & (slots - 1);
    return slot;
  }

  for (const [rank, { left, right }] of merges.entries()) {
    const slot = slotOf(left, right);
    lefts[slot] = left;
    rights[slot] = right;
    ranks[slot] = rank;
  }
  return (left, right) => ranks[slotOf(left, right)]!;
}
