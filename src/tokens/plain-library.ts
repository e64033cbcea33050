/**
 * The tokenizer library, given a tokenizer that knows no control tokens: whatever text says, it is encoded as text.
 *
 * Where a control token stood, the library is shown a separator that text cannot contain, so it treats the text around it as it
 * would around the token itself. Which token stood there is for the caller to know.
 */
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { AddedToken, Merge, TokenizerConfig, TokenizerDefinition, Vocabulary } from './tokenizer-files.ts';

/**
 * Stands for "a control token is here" in what the library encodes and decodes. Two high surrogates: text is made well-formed
 * before (as its encoding in UTF-8 would), so no text can hold them, nor can a pair at its edge be taken for a part of them.
 */
export const SEPARATOR = '\uD800\uD800';

/** Sections, and characters of each: some 20 MB at the very most. */
const REMEMBERED_SECTIONS = 1024;
const REMEMBERED_LENGTH = 2048;

/** What we use of the library, in our own words: its published types do not resolve under Node's module resolution. */
export interface Library {
  encode(text: string, options: { readonly add_special_tokens: false }): { readonly ids: readonly (number | undefined)[] };
  decode(ids: number[], options: { readonly skip_special_tokens: false; readonly clean_up_tokenization_spaces: false }): string;
  token_to_id(token: string): number | undefined;
  id_to_token(id: number): string | undefined;
}

/** `definition` without control tokens; `separatorId` must be no token's id. */
export function createPlainLibrary(definition: TokenizerDefinition, config: TokenizerConfig, separatorId: number): Library {
  const separator = { id: separatorId, content: SEPARATOR, lstrip: false, rstrip: false, normalized: false, special: true };
  try {
    return new HuggingFaceTokenizer({ ...definition, added_tokens: [...definition.added_tokens, separator] }, config);
  } catch (cause) {
    throw new TrainyardError('TOKENIZER_INVALID', `tokenizer.json is not usable: ${messageOf(cause)}`, { cause });
  }
}

/** Encodes the text between two control tokens; `first` where no token precedes it. */
export type EncodeSection = (text: string, first: boolean) => readonly number[];

export function sectionEncoder(plain: Library): EncodeSection {
  const encode = (text: string) => plain.encode(text, { add_special_tokens: false }).ids.map(known);
  // Some tokenizers put a space before the text only where nothing precedes it.
  return (text, first) => (first ? encode(text) : encode(SEPARATOR + text).slice(1));
}

/** Prompts of one run share most of their sections (system message, tools, role names), so short ones are remembered. */
export function rememberSections(encode: EncodeSection): EncodeSection {
  const remembered = new Map<string, readonly number[]>();
  return (text, first) => {
    if (first) return encode(text, first);
    const before = remembered.get(text);
    if (before) return before;
    const ids = encode(text, first);
    if (remembered.size >= REMEMBERED_SECTIONS) remembered.clear();
    // A copy: the section itself keeps all of the prompt that it was cut out of.
    if (text.length <= REMEMBERED_LENGTH) remembered.set(Buffer.from(text).toString(), ids);
    return ids;
  };
}

/** The same tokenizer without control tokens: neither as added tokens nor as something that text could be merged into. */
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

/** Enough to know the tokens and to decode. */
export function withoutMerging(definition: TokenizerDefinition): TokenizerDefinition {
  return { ...definition, model: { ...definition.model, ...(definition.model.merges && { merges: [] }) } };
}

function withoutEntries(vocab: Vocabulary, removed: ReadonlySet<string>): Vocabulary {
  // A list's positions are ids, so an entry is made unmatchable there instead of removed.
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
  throw new TrainyardError('REQUEST_INVALID', 'the text holds a character that the tokenizer has no token for', {
    hint: 'remove it, or use a model whose tokenizer works on bytes',
  });
}
