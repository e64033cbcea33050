/**
 * Text ↔ token ids, over `@huggingface/tokenizers`, with one difference that everything else here rests on: text is only text.
 *
 * Control tokens (the added tokens: `<|im_start|>`, `<tool_call>` …) come into a prompt from the chat template and from nowhere
 * else. So the library is given a tokenizer that does not know them, and only `encodeRendered` splits on them. For text without
 * control tokens in it, and for what a template rendered from such text, the ids are those of the unchanged tokenizer.
 *
 * Decoding keeps control tokens and does no clean-up: a response is shown as it was sampled.
 */
import { byteLevelDecoder } from './byte-level-decoder.ts';
import { byteLevelEncoder } from './byte-level-encoder.ts';
import {
  createPlainLibrary,
  rememberSections,
  SEPARATOR,
  sectionEncoder,
  vocabularySize,
  withoutControl,
  withoutMerging,
} from './plain-library.ts';
import {
  type AddedToken,
  readTokenizerFiles,
  type TokenizerConfig,
  type TokenizerDefinition,
  type TokenizerFiles,
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
  const textOnly = withoutControl(definition, control);
  // Its merges are most of what the library loads, and only its own way of encoding needs them.
  const vocabulary = spellsBytes(definition) ? createPlainLibrary(withoutMerging(textOnly), config, separatorId) : undefined;
  const encodeBytes = vocabulary && byteLevelEncoder(textOnly, config, vocabulary);
  const plain = encodeBytes ? vocabulary : createPlainLibrary(textOnly, config, separatorId);
  const encodeSection = rememberSections(encodeBytes ?? sectionEncoder(plain));

  function encodeRendered(rendered: string, restore: (text: string) => string = (text) => text): Int32Array {
    const tokens = Array.from(rendered.matchAll(controlPattern), ([text]) => controlByText.get(text)!);
    const texts = rendered.split(controlPattern).map((text) => restore(text).toWellFormed());
    const ids: number[] = [];
    for (const [i, text] of stripAround(texts, tokens).entries()) {
      if (text !== '') for (const id of encodeSection(text, i === 0)) ids.push(id);
      const token = tokens[i];
      if (token) ids.push(token.id);
    }
    return Int32Array.from(ids);
  }

  const verbatim = (id: number): string | undefined =>
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
  };
}

function spellsBytes({ decoder, model }: TokenizerDefinition): boolean {
  return (decoder as { type?: unknown } | undefined | null)?.type === 'ByteLevel' && !model['end_of_word_suffix'];
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
