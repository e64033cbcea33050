/**
 * Reads what Hugging Face calls a tokenizer: `tokenizer.json`, `tokenizer_config.json` and, where there is one,
 * `chat_template.jinja`. Everything that is wrong with these files is TOKENIZER_INVALID and found here.
 *
 * Checks the shape that the rest of `tokens/` relies on, no more: whether the model inside is usable is for the tokenizer library.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { messageOf, TrainyardError } from '../core/errors.ts';

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

export async function readTokenizerFiles(dir: string): Promise<TokenizerFiles> {
  const parsedDefinition = await readJson(join(dir, 'tokenizer.json'), definition);
  const parsedConfig = await readJson(join(dir, 'tokenizer_config.json'), config);
  const templateFile = await readText(join(dir, 'chat_template.jinja'));
  const chatTemplate = templateFile ?? templateOf(parsedConfig);
  if (chatTemplate === undefined) {
    throw new TrainyardError('TOKENIZER_INVALID', `${dir} has no chat template`, {
      hint: 'add chat_template.jinja, or chat_template in tokenizer_config.json: base models without one cannot hold a conversation',
    });
  }
  return { definition: parsedDefinition, config: parsedConfig, chatTemplate };
}

function templateOf(from: TokenizerConfig): string | undefined {
  if (typeof from.chat_template !== 'object') return from.chat_template;
  return from.chat_template.find((entry) => entry.name === 'default')?.template;
}

async function readJson<T>(path: string, schema: z.ZodType<T>): Promise<T> {
  const text = await readText(path);
  if (text === undefined) {
    throw new TrainyardError('TOKENIZER_INVALID', `${path} does not exist`, {
      hint: 'point to a model folder in Hugging Face layout, with tokenizer.json and tokenizer_config.json',
    });
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
