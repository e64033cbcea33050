/**
 * Converts text to token ids and back with `@huggingface/tokenizers`. One difference matters: text never becomes a control token.
 *
 * Control tokens (the added tokens: `<|im_start|>`, `<tool_call>` …) enter a prompt only through the chat template. So the library gets a
 * tokenizer that does not know them, and only `encodeRendered` splits on them. For text without
 * control tokens in it, and for what a template rendered from such text, the ids are those of the unchanged tokenizer.
 *
 * Decoding keeps control tokens and does no clean-up: a response is shown as it was sampled.
 */
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { byteLevelDecoder, byteLevelEncoder, byteLevelSpeller, type Tokens } from './byte-level.ts';
import {
  type AddedToken,
  type Merge,
  readTokenizerFiles,
  type TokenizerConfig,
  type TokenizerDefinition,
  type TokenizerFiles,
  type Vocabulary,
} from './tokenizer-files.ts';

export interface Tokenizer {
  /** One more than the largest id. */
  readonly vocabSize: number;
  /** Texts of the control tokens. Added tokens of white space only are ordinary text, not control. */
  readonly controlTokens: readonly string[];
  /** `bos_token`, `eos_token` … as tokenizer_config.json names them. */
  readonly specialTokens: Readonly<Record<string, string>>;
  readonly chatTemplate: string;
  idOf(token: string): number | undefined;
  /** Ids of a text; it cannot produce a control token. */
  encodeText(text: string): Int32Array;
  /** Ids of what a template rendered: control tokens where their text stands; `restore` is applied to the text between them. */
  encodeRendered(rendered: string, restore?: (text: string) => string): Int32Array;
  decode(ids: Iterable<number>): string;
  /** The bytes of one id, as `byteLevelSpeller` gives them. Undefined for tokenizers whose tokens are no bytes. */
  readonly bytesOf: ((id: number) => readonly number[]) | undefined;
}

/** Models may have more logits than the tokenizer has tokens; such an id is decoded as a broken character. */
const UNKNOWN = '\uFFFD';

export async function loadTokenizer(dir: string): Promise<Tokenizer> {
  return createTokenizer(await readTokenizerFiles(dir));
}

export function createTokenizer({ definition, config, chatTemplate }: TokenizerFiles): Tokenizer {
  const control = definition.added_tokens.filter((token) => token.content.trim() !== '');
  const controlByText = new Map(control.map((token) => [token.content, token]));
  const textOfControl = new Map(control.map((token) => [token.id, token.content]));
  const controlPattern = patternOf([...controlByText.keys()]);
  const vocabSize = vocabularySize(definition);
  const separatorId = vocabSize;
  const textOnly = withoutControl(definition, control);
  // Merges take most of the loading time, and only the library's own encoder needs them.
  const vocabulary = spellsBytes(definition) ? createPlainLibrary(withoutMerging(textOnly), config, separatorId) : undefined;
  const encodeBytes = vocabulary && byteLevelEncoder(textOnly, config, vocabulary);
  const plain = encodeBytes ? vocabulary : createPlainLibrary(textOnly, config, separatorId);
  const encodeSection = rememberSections(encodeBytes ?? sectionEncoder(plain));

  function encodeRendered(rendered: string, restore: (text: string) => string = (text) => text): Int32Array {
    // Texts at the even places, control tokens between them.
    const pieces = rendered.split(controlPattern);
    const ids: number[] = [];
    for (let i = 0; i < pieces.length; i += 2) {
      const next = controlByText.get(pieces[i + 1]!);
      let text = restore(pieces[i]!).toWellFormed();
      // Some control tokens swallow the white space around them.
      if (controlByText.get(pieces[i - 1]!)?.rstrip) text = text.trimStart();
      if (next?.lstrip) text = text.trimEnd();
      if (text !== '') for (const id of encodeSection(text, i === 0)) ids.push(id);
      if (next) ids.push(next.id);
    }
    return new Int32Array(ids);
  }

  const verbatim = (id: number) =>
    textOfControl.get(id) ?? (plain.id_to_token(id) === undefined || id === separatorId ? UNKNOWN : undefined);

  function decodeAny(ids: Iterable<number>): string {
    const separated: string[] = [];
    const plainIds = Array.from(ids, (id) => {
      const text = verbatim(id);
      if (text === undefined) return id;
      separated.push(text);
      return separatorId;
    });
    if (plainIds.length === 0) return '';
    const text = plain.decode(plainIds, { skip_special_tokens: false, clean_up_tokenization_spaces: false });
    let next = 0;
    return text.replaceAll(SEPARATOR, () => separated[next++]!);
  }

  const blanks = new Map(
    definition.added_tokens.filter((token) => !control.includes(token)).map(({ id, content }) => [id, content]),
  );
  const bytes = { verbatim: (id: number) => verbatim(id) ?? blanks.get(id), spelt: (id: number) => plain.id_to_token(id)! };

  return {
    vocabSize,
    controlTokens: [...controlByText.keys()],
    specialTokens: specialTokensOf(config),
    chatTemplate,
    idOf: (token) => controlByText.get(token)?.id ?? (token === SEPARATOR ? undefined : plain.token_to_id(token)),
    encodeText: (text) => Int32Array.from(encodeSection(text.toWellFormed(), true)),
    encodeRendered,
    decode: spellsBytes(definition) ? byteLevelDecoder(bytes) : decodeAny,
    bytesOf: spellsBytes(definition) ? byteLevelSpeller(bytes) : undefined,
  };
}

function spellsBytes({ decoder, model }: TokenizerDefinition): boolean {
  return (decoder as { type?: unknown } | undefined | null)?.type === 'ByteLevel' && !model['end_of_word_suffix'];
}

/** A group, so that `split` keeps the tokens. Longest first: where two start at one place, the longer one is meant. */
function patternOf(tokens: readonly string[]): RegExp {
  const longestFirst = tokens.toSorted((a, b) => b.length - a.length);
  const alternatives = longestFirst.map((token) => token.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&'));
  return new RegExp(alternatives.length === 0 ? '((?!))' : `(${alternatives.join('|')})`);
}

function specialTokensOf(config: TokenizerConfig): Record<string, string> {
  const named = {
    bos_token: config.bos_token,
    eos_token: config.eos_token,
    pad_token: config.pad_token,
    unk_token: config.unk_token,
  };
  const present = Object.entries(named).filter(([, token]) => token !== null && token !== undefined);
  return Object.fromEntries(present.map(([name, token]) => [name, typeof token === 'object' ? token!.content : token!]));
}

/**
 * Stands for "a control token is here" in what the library encodes and decodes. Two high surrogates: text is made well-formed
 * before (as its encoding in UTF-8 would), so no text can hold them, nor can a pair at its edge be taken for a part of them.
 */
const SEPARATOR = '\uD800\uD800';

/** Sections, and characters of each: some 20 MB at the very most. */
const REMEMBERED_SECTIONS = 1024;
const REMEMBERED_LENGTH = 2048;

/** What we use of the library, in our own words: its published types do not resolve under Node's module resolution. */
interface Library extends Tokens {
  encode(text: string, options: { readonly add_special_tokens: false }): { readonly ids: readonly (number | undefined)[] };
  decode(ids: number[], options: { readonly skip_special_tokens: false; readonly clean_up_tokenization_spaces: false }): string;
}

/**
 * The library with a tokenizer that knows no control tokens, so that every text is encoded as text. A separator that no text can contain
 * stands for each control token, so that the text around it is encoded as it would be next to the token. No token may have `separatorId`.
 */
export function createPlainLibrary(definition: TokenizerDefinition, config: TokenizerConfig, separatorId: number): Library {
  const separator = { id: separatorId, content: SEPARATOR, lstrip: false, rstrip: false, normalized: false, special: true };
  try {
    return new HuggingFaceTokenizer({ ...definition, added_tokens: [...definition.added_tokens, separator] }, config);
  } catch (cause) {
    throw new TrainyardError('TOKENIZER_INVALID', `tokenizer.json is not usable: ${messageOf(cause)}`, { cause });
  }
}

/** Encodes the text between two control tokens; `first` where no token precedes it. */
type EncodeSection = (text: string, first: boolean) => readonly number[];

function sectionEncoder(plain: Library): EncodeSection {
  const encode = (text: string) => plain.encode(text, { add_special_tokens: false }).ids.map(known);
  // Some tokenizers put a space before the text only where nothing precedes it.
  return (text, first) => (first ? encode(text) : encode(SEPARATOR + text).slice(1));
}

/** Prompts of one run share most of their sections (system message, tools, role names), so short ones are remembered. */
function rememberSections(encode: EncodeSection): EncodeSection {
  const remembered = new Map<string, readonly number[]>();
  return (text, first) => {
    if (first) return encode(text, first);
    const before = remembered.get(text);
    if (before) return before;
    const ids = encode(text, first);
    if (remembered.size >= REMEMBERED_SECTIONS) remembered.clear();
    // A copy, because a slice keeps the whole prompt in memory.
    if (text.length <= REMEMBERED_LENGTH) remembered.set(Buffer.from(text).toString(), ids);
    return ids;
  };
}

/** The tokenizer without its control tokens: removed from the added tokens, the vocabulary and the merges. */
export function withoutControl(definition: TokenizerDefinition, control: readonly AddedToken[]): TokenizerDefinition {
  const { model } = definition;
  const removed = new Set(control.map((token) => token.content).filter((text) => text !== model.unk_token));
  return {
    ...definition,
    added_tokens: definition.added_tokens.filter((token) => !control.includes(token)),
    model: {
      ...model,
      vocab: withoutEntries(model.vocab, removed),
      ...(model.merges && { merges: withoutMerges(model.merges, removed) }),
    },
  };
}

/** Without merges, which suffices for looking up tokens and decoding. */
function withoutMerging(definition: TokenizerDefinition): TokenizerDefinition {
  return { ...definition, model: { ...definition.model, ...(definition.model.merges && { merges: [] }) } };
}

function withoutEntries(vocab: Vocabulary, removed: ReadonlySet<string>): Vocabulary {
  // In a list the position is the id, so an entry is made unmatchable instead of being removed.
  if (Array.isArray(vocab)) return vocab.map(([text, score]) => [removed.has(text) ? SEPARATOR + text : text, score]);
  return Object.fromEntries(Object.entries(vocab).filter(([text]) => !removed.has(text)));
}

function withoutMerges(merges: readonly Merge[], removed: ReadonlySet<string>): readonly Merge[] {
  return merges.filter((merge) => !removed.has(typeof merge === 'string' ? merge.replace(' ', '') : merge.join('')));
}

export function vocabularySize({ model, added_tokens }: TokenizerDefinition): number {
  const ids = Array.isArray(model.vocab) ? model.vocab.keys() : Object.values(model.vocab);
  let largest = -1;
  for (const id of ids) largest = Math.max(largest, id);
  for (const { id } of added_tokens) largest = Math.max(largest, id);
  return largest + 1;
}

function known(id: number | undefined): number {
  if (id !== undefined) return id;
  throw new TrainyardError(
    'REQUEST_INVALID',
    'the text holds a character that the tokenizer has no token for',
    'remove it, or use a model whose tokenizer works on bytes',
  );
}
