/**
 * Text ↔ ids for tokenizers whose tokens spell bytes, as nearly all of today's do. The library's way stays the truth that this one is
 * tested against.
 *
 * To ids: the tokenizer library's own pattern splits the text into words, and each word is remembered or merged from its bytes.
 * Only for definitions of which every part is known to mean what is done here; for all others `byteLevelEncoder` gives undefined. What
 * text may not become (control tokens) must be out of the definition before. Text must be well-formed.
 */
import * as huggingFace from '@huggingface/tokenizers';
import { z } from 'zod';
import { bytePairEncoder, type IdMerge } from './byte-pairs.ts';
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
const words = z.strictObject({ type: z.literal('Sequence'), pretokenizers: z.tuple([split, bytesOnly]) });

/** These put control tokens around the text at most, which is not asked for here. */
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

/** `definition` without control tokens, and the library of it. White space as an added token is not known here either. */
export function byteLevelEncoder(
  definition: TokenizerDefinition,
  config: TokenizerConfig,
  library: Tokens,
): ((text: string) => number[]) | undefined {
  const known = knownDefinition.safeParse(definition);
  if (!known.success || !knownConfig.safeParse(config).success || definition.added_tokens.length > 0) return undefined;
  const { model, normalizer, pre_tokenizer } = known.data;
  // Where two tokens have one id, only one of them has it here.
  const idOf = (token: string): number | undefined => {
    const id = library.token_to_id(token);
    return Number.isInteger(id) && id! >= 0 && library.id_to_token(id!) === token ? id : undefined;
  };
  const byteSpelt = [...spelling().keys()];
  const idOfByte = byteSpelt.map(idOf);
  const merges = mergesOf(definition.model.merges ?? [], idOf);
  if (!merges || !idOfByte.every((id) => id !== undefined)) return undefined;

  const mergeBytes = bytePairEncoder(idOfByte, merges);
  const whole = (word: Buffer): number | undefined => library.token_to_id(Array.from(word, (byte) => byteSpelt[byte]).join(''));
  const encodeWord = rememberWords((word) => {
    const id = model.ignore_merges ? whole(word) : undefined;
    return id === undefined ? mergeBytes(word) : [id];
  });
  const wordsOf = splitter(pre_tokenizer);
  const normalize = (text: string): string => (normalizer === null ? text : text.normalize('NFC'));

  return (text) => {
    const ids: number[] = [];
    for (const word of wordsOf(normalize(text))) {
      for (const id of encodeWord(word)) ids.push(id);
    }
    return ids;
  };
}

/** Undefined where two tokens would become something that is no token. */
function mergesOf(merges: readonly Merge[], idOf: (token: string) => number | undefined): IdMerge[] | undefined {
  const known: IdMerge[] = [];
  for (const merge of merges) {
    // All of them are written as the first one is.
    if (typeof merge !== typeof merges[0]) return undefined;
    const [first = '', second = ''] = typeof merge === 'string' ? merge.split(' ', 2) : merge;
    const left = idOf(first);
    const right = idOf(second);
    // Nothing is merged into what is no token, so these two never meet.
    if (left === undefined || right === undefined) continue;
    const merged = idOf(first + second);
    if (merged === undefined) return undefined;
    known.push({ left, right, merged });
  }
  return known;
}

/** Published patterns are Rust's, and the library knows how to say them in JavaScript. In our own words: its types do not resolve. */
interface Splitter {
  readonly pattern: RegExp;
  pre_tokenize_text(text: string): readonly string[];
}
type SplitterName = 'ByteLevelPreTokenizer' | 'SplitPreTokenizer';
const { ByteLevelPreTokenizer, SplitPreTokenizer } = huggingFace as unknown as Record<
  SplitterName,
  new (
    given: Words | z.infer<typeof split>,
  ) => Splitter
>;

function splitter(given: Words): (text: string) => readonly string[] {
  if (given.type === 'ByteLevel') {
    const { pattern } = new ByteLevelPreTokenizer(given);
    return (text) => text.match(pattern) ?? [];
  }
  const library = new SplitPreTokenizer(given.pretokenizers[0]);
  return (text) => {
    const found = text.match(library.pattern) ?? [];
    let length = 0;
    for (const word of found) length += word.length;
    // What is between the matches is a word too, but patterns hardly ever leave anything.
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
    // A copy: the word itself keeps all of the text that it was cut out of.
    remembered.set(spelt.toString(), ids);
    return ids;
  };
}

/** Printable bytes are spelt as themselves, the others by the characters from U+0100 on, in order. Gives the bytes in order. */
function spelling(): ReadonlyMap<string, number> {
  const isPrintable = (byte: number): boolean => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte !== 0xad);
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
  const add = (bytes: Uint8Array): void => {
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
