import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/fixtures/folder.ts';
import { ggufBytes } from '../../test/fixtures/nn/gguf-writer.ts';
import { files, folder } from '../../test/fixtures/tokens/base.ts';
import { loadRenderer } from './renderer.ts';
import { loadTokenizer } from './tokenizer.ts';
import { modelTextFiles, readTokenizerFiles } from './tokenizer-files.ts';

const vocabulary = files.definition.model.vocab as Readonly<Record<string, number>>;

/** One token for each byte, then these; the last three are control, user-defined and unused. */
const BYTES = Object.keys(vocabulary).filter((token) => [...token].length === 1);
const MERGED = ['12', '34', '123', '1234', 'ĠĠ', '!!', "'S"];
const TOKENS = [...BYTES, ...MERGED, '<|end|>', '<tool>', '[PAD0]'];
const MERGES = ['1 2', '3 4', '12 3', '12 34', 'Ġ Ġ', '! !', "' S"];
const METADATA = {
  'general.architecture': 'llama',
  'tokenizer.ggml.model': 'gpt2',
  'tokenizer.ggml.pre': 'gpt-2',
  'tokenizer.ggml.tokens': TOKENS,
  'tokenizer.ggml.token_type': TOKENS.map((_, id) => [3, 4, 5][id - TOKENS.length + 3] ?? 1),
  'tokenizer.ggml.merges': MERGES,
  'tokenizer.ggml.eos_token_id': TOKENS.indexOf('<|end|>'),
  'tokenizer.chat_template': '{% for message in messages %}{{ message.content + eos_token }}{% endfor %}<tool>',
};

function write(metadata: Parameters<typeof ggufBytes>[0]): string {
  // No program asks for the ending: Ollama's files have none.
  const path = join(temporaryFolder(), 'sha256-0123');
  writeFileSync(path, ggufBytes(metadata, []));
  return path;
}

describe('the tokenizer of a GGUF file', () => {
  it('encodes, decodes and names its tokens', async () => {
    const tokenizer = await loadTokenizer(write(METADATA));
    const text = 'naïve  1234!! <|end|> 🙂';
    expect(tokenizer.decode(tokenizer.encodeText(text))).toBe(text);
    expect(tokenizer.encodeText(text)).toContain(TOKENS.indexOf('1234'));
    expect(tokenizer.encodeText('[PAD0]').length).toBe(6);
    expect(tokenizer.controlTokens).toEqual(['<|end|>', '<tool>']);
    expect(tokenizer.specialTokens).toEqual({ eos_token: '<|end|>' });
    expect(tokenizer.vocabSize).toBe(TOKENS.length - 1);
  });

  it('brings its chat template', async () => {
    const renderer = await loadRenderer(write(METADATA));
    const ids = renderer.open([{ role: 'user', content: '12' }], []);
    expect([...ids]).toEqual(['12', '<|end|>', '<tool>'].map((token) => TOKENS.indexOf(token)));
    const { 'tokenizer.chat_template': _, ...rest } = METADATA;
    await expect(loadRenderer(write(rest))).rejects.toThrow(/no chat template/);
  });

  it.each([
    ['gpt-2', ['1234', 'Ġ', 'Ġ', '1', "'", 'S']],
    ['smollm', ['1', '2', '3', '4', 'ĠĠ', '1', "'", 'S']],
    ['qwen2', ['1', '2', '3', '4', 'Ġ', 'Ġ', '1', "'S"]],
    ['llama-bpe', ['123', '4', 'Ġ', 'Ġ', '1', "'S"]],
    ['llama3', ['123', '4', 'Ġ', 'Ġ', '1', "'S"]],
    ['default', ['123', '4', 'Ġ', 'Ġ', '1', "'", 'S']],
  ] as const)('splits text into words as its name says: %s', async (pre, expected) => {
    const tokenizer = await loadTokenizer(write({ ...METADATA, 'tokenizer.ggml.pre': pre }));
    expect(Array.from(tokenizer.encodeText("1234  1'S"), (id) => TOKENS[id])).toEqual(expected);
    // Qwen alone composes characters.
    expect(tokenizer.decode(tokenizer.encodeText('e\u0301'))).toBe(pre === 'qwen2' ? 'é' : 'e\u0301');
  });

  it('is made into the files that a folder has, which mean the same to everyone', async () => {
    const path = write(METADATA);
    const texts = await modelTextFiles(path);
    const dir = temporaryFolder();
    for (const [name, text] of Object.entries(texts)) writeFileSync(join(dir, name), text);
    expect(Object.keys(texts).sort()).toEqual(['chat_template.jinja', 'tokenizer.json', 'tokenizer_config.json']);
    expect(await readTokenizerFiles(dir)).toEqual(await readTokenizerFiles(path));
    expect(await modelTextFiles(dir)).toEqual(texts);
    expect((await modelTextFiles(folder))['chat_template.jinja'] ?? files.chatTemplate).toBe(files.chatTemplate);
  });

  it.each([
    ['SentencePiece', { 'tokenizer.ggml.model': 'llama' }, /of the kind llama, expected gpt2/],
    ['words of unknown kind', { 'tokenizer.ggml.pre': 'tekken' }, /into words as tekken, expected one of gpt-2, smollm, qwen2/],
    ['numbers for tokens', { 'tokenizer.ggml.tokens': [1, 2] }, /tokens/],
    ['too few types', { 'tokenizer.ggml.token_type': [1, 1] }, /a type for each token/],
    ['no merges', { 'tokenizer.ggml.merges': 'none' }, /merges/],
  ])('is refused by name: %s', async (_, changed, message) => {
    const refused = await loadTokenizer(write({ ...METADATA, ...changed })).catch((thrown: unknown) => thrown);
    expect(refused).toMatchObject({
      code: 'TOKENIZER_INVALID',
      message: expect.stringMatching(message),
      hint: expect.any(String),
    });
  });
});
