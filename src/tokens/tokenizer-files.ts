/**
 * Reads what Hugging Face calls a tokenizer: `tokenizer.json`, `tokenizer_config.json` and, where there is one,
 * `chat_template.jinja`; from a GGUF file, what its metadata says in these words. What is wrong with them is TOKENIZER_INVALID and found here.
 *
 * Checks the shape that the rest of `tokens/` relies on, no more: whether the model inside is usable is for the tokenizer library.
 */
import { open, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { readGgufHeader } from '../core/gguf-header.ts';

const addedToken = z.looseObject({
  id: z.int().nonnegative(),
  content: z.string().min(1),
  lstrip: z.boolean().default(false),
  rstrip: z.boolean().default(false),
});

/** Token → id, or a list of [token, score] by id. */
export type Vocabulary = Readonly<Record<string, number>> | readonly (readonly [string, number])[];
export type Merge = string | readonly [string, string];

// These have hundreds of thousands of entries: checking each would take longer than the rest of loading.
const vocabulary = z.custom<Vocabulary>((value) => typeof value === 'object' && value !== null, 'expected an object or a list');
const mergeList = z.custom<readonly Merge[]>((value) => Array.isArray(value), 'expected a list');

const definition = z.looseObject({
  added_tokens: z.array(addedToken),
  model: z.looseObject({
    vocab: vocabulary,
    merges: mergeList.optional(),
    unk_token: z.string().nullish(),
  }),
});

const namedToken = z.union([z.string(), z.looseObject({ content: z.string() })]).nullish();

const config = z.looseObject({
  bos_token: namedToken,
  eos_token: namedToken,
  pad_token: namedToken,
  unk_token: namedToken,
  chat_template: z.union([z.string(), z.array(z.object({ name: z.string(), template: z.string() }))]).optional(),
});

export type AddedToken = z.infer<typeof addedToken>;
export type TokenizerDefinition = z.infer<typeof definition>;
export type TokenizerConfig = z.infer<typeof config>;

export interface TokenizerFiles {
  readonly definition: TokenizerDefinition;
  readonly config: TokenizerConfig;
  /** Jinja source. */
  readonly chatTemplate: string;
}

const DEFINITION = 'tokenizer.json';
const CONFIG = 'tokenizer_config.json';
const TEMPLATE = 'chat_template.jinja';

/** The files by their names, those that there are: of a folder, or made from a GGUF file. */
export async function modelTextFiles(path: string): Promise<Record<string, string>> {
  const isFile = await stat(path)
    .then((found) => found.isFile())
    .catch(() => false);
  if (isFile) return ggufTextFiles(path);
  const texts: Record<string, string> = {};
  for (const name of [DEFINITION, CONFIG, TEMPLATE]) {
    const text = await readText(join(path, name));
    if (text !== undefined) texts[name] = text;
  }
  return texts;
}

/** `dir` may be a GGUF file. */
export async function readTokenizerFiles(dir: string): Promise<TokenizerFiles> {
  const texts = await modelTextFiles(dir);
  const parsedDefinition = parseJson(texts[DEFINITION], join(dir, DEFINITION), definition);
  const parsedConfig = parseJson(texts[CONFIG], join(dir, CONFIG), config);
  const chatTemplate = texts[TEMPLATE] ?? templateOf(parsedConfig);
  if (chatTemplate === undefined) {
    throw new TrainyardError(
      'TOKENIZER_INVALID',
      `${dir} has no chat template`,
      'add chat_template.jinja, or chat_template in tokenizer_config.json: base models without one cannot hold a conversation',
    );
  }
  return { definition: parsedDefinition, config: parsedConfig, chatTemplate };
}

function templateOf(from: TokenizerConfig): string | undefined {
  if (typeof from.chat_template !== 'object') return from.chat_template;
  return from.chat_template.find((entry) => entry.name === 'default')?.template;
}

function parseJson<T>(text: string | undefined, path: string, schema: z.ZodType<T>): T {
  if (text === undefined) {
    throw new TrainyardError(
      'TOKENIZER_INVALID',
      `${path} does not exist`,
      'point to a model folder in Hugging Face layout, with tokenizer.json and tokenizer_config.json',
    );
  }
  try {
    const result = schema.safeParse(JSON.parse(text));
    if (result.success) return result.data;
    throw new TrainyardError('TOKENIZER_INVALID', `${path} is not as expected: ${z.prettifyError(result.error)}`);
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    throw new TrainyardError('TOKENIZER_INVALID', `${path} is not JSON: ${messageOf(cause)}`, { cause });
  }
}

/** Undefined if the file does not exist. */
async function readText(path: string): Promise<string | undefined> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw new TrainyardError('TOKENIZER_INVALID', `${path} cannot be read: ${messageOf(cause)}`, { cause });
  }
}

// ── the tokenizer in a GGUF file ──────────────────────────────────────────────────────────────────────────────────────

const sequence = (...pretokenizers: readonly object[]): object => ({ type: 'Sequence', pretokenizers });
const byteLevel = (use_regex: boolean) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex });
const split = (regex: string) => ({ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false });
const splitWith = (numbers: string) =>
  split(
    `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|${numbers}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+`,
  );

/** How a byte-level BPE tokenizer splits text into words, by the name that GGUF files use; as in the models' own tokenizer.json. */
const PRE_TOKENIZERS: Readonly<Record<string, { pre_tokenizer: object; normalizer?: object; ignoreMerges?: boolean }>> = {
  'gpt-2': { pre_tokenizer: byteLevel(true) },
  smollm: { pre_tokenizer: sequence({ type: 'Digits', individual_digits: true }, byteLevel(true)) },
  qwen2: { pre_tokenizer: sequence(splitWith('\\p{N}'), byteLevel(false)), normalizer: { type: 'NFC' } },
  'llama-bpe': { pre_tokenizer: sequence(splitWith('\\p{N}{1,3}'), byteLevel(false)), ignoreMerges: true },
  // What llama.cpp does for files that do not say.
  default: {
    pre_tokenizer: sequence(
      split('[\\p{P}\\$\\+<=>\\^~\\|]+'),
      split("'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"),
      ...['\\p{N}+', '[0-9][0-9][0-9]'].map(split),
      byteLevel(false),
    ),
  },
};

/** ggml's types of tokens: two that are never merged from bytes, and one that only fills the embedding up. */
const CONTROL = 3;
const USER_DEFINED = 4;
const UNUSED = 5;

async function ggufTextFiles(path: string): Promise<Record<string, string>> {
  await using file = await open(path);
  const { metadata } = await readGgufHeader(file, path);
  const given = (name: string) => metadata.get(`tokenizer.ggml.${name}`);
  const hint = 'use the folder of the model in Hugging Face layout, which has its tokenizer.json';
  const refused = (found: string) => new TrainyardError('TOKENIZER_INVALID', `${path} ${found}`, hint);
  if (given('model') !== 'gpt2') throw refused(`has a tokenizer of the kind ${given('model')}, expected gpt2 (byte-level BPE)`);
  const pre = String(given('pre') ?? 'default').replace(/^llama(3|-v3)$/, 'llama-bpe');
  if (!Object.hasOwn(PRE_TOKENIZERS, pre)) {
    throw refused(`splits text into words as ${pre}, expected one of ${Object.keys(PRE_TOKENIZERS).join(', ')}`);
  }
  const lists = ggufLists.safeParse({ tokens: given('tokens'), merges: given('merges'), types: given('token_type') });
  if (!lists.success) throw refused(`has a tokenizer that is not as expected: ${z.prettifyError(lists.error)}`);
  const named = Object.entries({ bos_token: 'bos', eos_token: 'eos', unk_token: 'unknown', pad_token: 'padding' }).map(
    ([name, key]) => [name, lists.data.tokens[Number(given(`${key}_token_id`))]] as const,
  );
  const template = metadata.get('tokenizer.chat_template');
  return {
    [DEFINITION]: JSON.stringify(definitionOf(lists.data, PRE_TOKENIZERS[pre]!)),
    [CONFIG]: JSON.stringify({ ...Object.fromEntries(named), tokenizer_class: 'PreTrainedTokenizerFast' }),
    ...(typeof template === 'string' && { [TEMPLATE]: template }),
  };
}

const texts = z.custom<readonly string[]>((value) => isListOf('string', value), 'expected a list of texts');
const numbers = z.custom<readonly number[]>((value) => isListOf('number', value), 'expected a list of numbers');
const ggufLists = z
  .object({ tokens: texts, merges: texts, types: numbers })
  .refine(({ tokens, types }) => tokens.length === types.length, 'expected a type for each token');

function isListOf(type: string, value: unknown): boolean {
  return Array.isArray(value) && value.every((one) => typeof one === type);
}

function definitionOf({ tokens, merges, types }: z.infer<typeof ggufLists>, words: (typeof PRE_TOKENIZERS)[string]): object {
  const used = [...tokens.entries()].filter(([id]) => types[id] !== UNUSED);
  const added = used.filter(([id]) => types[id] === CONTROL || types[id] === USER_DEFINED);
  const how = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  return {
    version: '1.0',
    added_tokens: added.map(([id, content]) => ({ id, content, ...how, special: types[id] === CONTROL })),
    normalizer: words.normalizer ?? null,
    pre_tokenizer: words.pre_tokenizer,
    post_processor: null,
    decoder: byteLevel(true),
    model: {
      type: 'BPE',
      ignore_merges: words.ignoreMerges ?? false,
      vocab: Object.fromEntries(used.map(([id, token]) => [token, id])),
      merges,
    },
  };
}
