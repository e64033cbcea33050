/**
 * Text ↔ token ids, over `@huggingface/tokenizers`, with one difference that everything else here rests on: text is only text.
 *
 * Control tokens (the added tokens: `<|im_start|>`, `<tool_call>` …) come into a prompt from the chat template and from nowhere
 * else. So the library is given a tokenizer that does not know them, and only `encodeRendered` splits on them. For text without
 * control tokens in it, and for what a template rendered from such text, the ids are those of the unchanged tokenizer.
 *
 * Decoding keeps control tokens and does no clean-up: a response is shown as it was sampled.
 */
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers';
import { messageOf, TrainyardError } from '../core/errors.ts';
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
  /** Ids of text that can hold no control token, whatever it says. */
  encodeText(text: string): Int32Array;
  /** Ids of what a template rendered: control tokens where their text stands; `restore` is applied to the text between them. */
  encodeRendered(rendered: string, restore?: (text: string) => string): Int32Array;
  decode(ids: Iterable<number>): string;
}

/**
 * Stands for "a control token is here" in what the library encodes and decodes. Two high surrogates: text is made well-formed
 * before (as its encoding in UTF-8 would), so no text can hold them, nor can a pair at its edge be taken for a part of them.
 */
const SEPARATOR = '\uD800\uD800';

/** Models may have more logits than the tokenizer has tokens; such an id is shown like a broken character. */
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
  const plain = construct(withoutControl(definition, control, separatorId), config);

  function encodeRendered(rendered: string, restore: (text: string) => string = (text) => text): Int32Array {
    const tokens = Array.from(rendered.matchAll(controlPattern), ([text]) => controlByText.get(text)!);
    const texts = rendered.split(controlPattern).map((text) => restore(text).toWellFormed());
    const ids = plain.encode(stripAround(texts, tokens).join(SEPARATOR), { add_special_tokens: false }).ids;
    let next = 0;
    return Int32Array.from(ids, (id) => (id === separatorId ? tokens[next++]!.id : known(id)));
  }

  function decode(ids: Iterable<number>): string {
    const separated: string[] = [];
    const plainIds = Array.from(ids, (id) => {
      const text = textOfControl.get(id) ?? (plain.id_to_token(id) === undefined || id === separatorId ? UNKNOWN : undefined);
      if (text === undefined) return id;
      separated.push(text);
      return separatorId;
    });
    if (plainIds.length === 0) return '';
    const text = plain.decode(plainIds, { skip_special_tokens: false, clean_up_tokenization_spaces: false });
    let next = 0;
    return text.replaceAll(SEPARATOR, () => separated[next++]!);
  }

  return {
    vocabSize,
    controlTokens: [...controlByText.keys()],
    specialTokens: specialTokensOf(config),
    chatTemplate,
    idOf: (token) => controlByText.get(token)?.id ?? (token === SEPARATOR ? undefined : plain.token_to_id(token)),
    encodeText: (text) => Int32Array.from(plain.encode(text.toWellFormed(), { add_special_tokens: false }).ids, known),
    encodeRendered,
    decode,
  };
}

/** What we use of the library, in our own words: its published types do not resolve under Node's module resolution. */
interface Library {
  encode(text: string, options: { readonly add_special_tokens: false }): { readonly ids: readonly (number | undefined)[] };
  decode(ids: number[], options: { readonly skip_special_tokens: false; readonly clean_up_tokenization_spaces: false }): string;
  token_to_id(token: string): number | undefined;
  id_to_token(id: number): string | undefined;
}

function construct(definition: TokenizerDefinition, config: TokenizerConfig): Library {
  try {
    return new HuggingFaceTokenizer(definition, config);
  } catch (cause) {
    throw new TrainyardError('TOKENIZER_INVALID', `tokenizer.json is not usable: ${messageOf(cause)}`, { cause });
  }
}

/** The same tokenizer without control tokens: neither as added tokens nor as something that text could be merged into. */
function withoutControl(
  definition: TokenizerDefinition,
  control: readonly AddedToken[],
  separatorId: number,
): TokenizerDefinition {
  const { model } = definition;
  const removed = new Set(control.map((token) => token.content).filter((text) => text !== model.unk_token));
  const separator = { id: separatorId, content: SEPARATOR, lstrip: false, rstrip: false, normalized: false, special: true };
  const whitespace = definition.added_tokens.filter((token) => !control.includes(token));
  return {
    ...definition,
    added_tokens: [...whitespace, separator],
    model: {
      ...model,
      vocab: withoutEntries(model.vocab, removed),
      ...(model.merges && { merges: withoutMerges(model.merges, removed) }),
    },
  };
}

function withoutEntries(vocab: Vocabulary, removed: ReadonlySet<string>): Vocabulary {
  // A list's positions are ids, so an entry is made unmatchable there instead of removed.
  if (Array.isArray(vocab)) return vocab.map(([text, score]) => [removed.has(text) ? SEPARATOR + text : text, score]);
  return Object.fromEntries(Object.entries(vocab).filter(([text]) => !removed.has(text)));
}

function withoutMerges(merges: readonly Merge[], removed: ReadonlySet<string>): readonly Merge[] {
  return merges.filter((merge) => !removed.has(typeof merge === 'string' ? merge.replace(' ', '') : merge.join('')));
}

function vocabularySize({ model, added_tokens }: TokenizerDefinition): number {
  const ids = Array.isArray(model.vocab) ? model.vocab.keys() : Object.values(model.vocab);
  let largest = -1;
  for (const id of ids) largest = Math.max(largest, id);
  for (const { id } of added_tokens) largest = Math.max(largest, id);
  return largest + 1;
}

/** Longest first: where two control tokens start at one place, the longer one is meant. */
function patternOf(tokens: readonly string[]): RegExp {
  const longestFirst = tokens.toSorted((a, b) => b.length - a.length);
  const alternatives = longestFirst.map((token) => token.replace(/[\\^$.*+?()[\]{}|/-]/g, '\\$&'));
  return new RegExp(alternatives.length === 0 ? '(?!)' : alternatives.join('|'), 'g');
}

/** Some control tokens swallow the white space next to them. There is one more text than tokens. */
function stripAround(texts: readonly string[], tokens: readonly AddedToken[]): string[] {
  return texts.map((text, i) => {
    const left = tokens[i - 1]?.rstrip ? text.trimStart() : text;
    return tokens[i]?.lstrip ? left.trimEnd() : left;
  });
}

function known(id: number | undefined): number {
  if (id !== undefined) return id;
  throw new TrainyardError('REQUEST_INVALID', 'the text holds a character that the tokenizer has no token for', {
    hint: 'remove it, or use a model whose tokenizer works on bytes',
  });
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
