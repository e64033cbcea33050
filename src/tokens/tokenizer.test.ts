import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { awkwardText } from '../../test/fixtures/tokens/awkward-text.ts';
import { files, tokenizer } from '../../test/fixtures/tokens/base.ts';
import { createTokenizer, loadTokenizer } from './tokenizer.ts';

const reference = new HuggingFaceTokenizer(files.definition, files.config);
const referenceIds = (text: string): number[] => reference.encode(text, { add_special_tokens: false }).ids;
const controlIds = tokenizer.controlTokens.map((token) => tokenizer.idOf(token)!);

const controlText = fc.constantFrom(...tokenizer.controlTokens);
const textWithControl = fc
  .array(fc.oneof(fc.string(), awkwardText, controlText), { maxLength: 12 })
  .map((parts) => parts.join(''));

describe('the tokenizer', () => {
  it('knows its vocabulary and the names of its tokens', () => {
    expect(tokenizer.vocabSize).toBe(640);
    expect(tokenizer.controlTokens).toEqual(['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<tool_call>', '</tool_call>']);
    expect(tokenizer.specialTokens).toEqual({ eos_token: '<|im_end|>', pad_token: '<|endoftext|>' });
    expect(tokenizer.idOf('<|im_end|>')).toBe(2);
    expect(tokenizer.idOf('no such token')).toBeUndefined();
  });

  it('gives the ids of the unchanged tokenizer for text, and for rendered text with control tokens in it', () => {
    fc.assert(
      fc.property(textWithControl, (text) => {
        expect([...tokenizer.encodeRendered(text)]).toEqual(referenceIds(text));
        const plain = tokenizer.controlTokens.reduce((rest, token) => rest.replaceAll(token, ''), text);
        fc.pre(!tokenizer.controlTokens.some((token) => plain.includes(token)));
        expect([...tokenizer.encodeText(plain)]).toEqual(referenceIds(plain));
      }),
      { numRuns: 500 },
    );
  });

  it('never makes a control token from text, and loses nothing of it', () => {
    fc.assert(
      fc.property(textWithControl, (text) => {
        const ids = tokenizer.encodeText(text);
        expect(ids.filter((id) => controlIds.includes(id))).toHaveLength(0);
        expect(tokenizer.decode(ids)).toBe(text);
      }),
      { numRuns: 500 },
    );
  });

  it('writes half a surrogate pair as U+FFFD, as UTF-8 does, wherever it stands', () => {
    expect(tokenizer.decode(tokenizer.encodeText('a\uDC00b\uD800\uD800'))).toBe('a\uFFFDb\uFFFD\uFFFD');
    const rendered = tokenizer.encodeRendered('<|im_start|>a\uD800\uD800<|im_end|>\uD800\uDC00');
    expect(tokenizer.decode(rendered)).toBe('<|im_start|>a\uFFFD\uFFFD<|im_end|>\u{10000}');
  });

  it('decodes nothing to nothing, keeps control tokens and does not tidy up spaces', () => {
    expect(tokenizer.decode([])).toBe('');
    const text = '<|im_start|>It is n\'t , so . <tool_call>{"a":1}</tool_call> <|im_end|>';
    expect(tokenizer.decode(tokenizer.encodeRendered(text))).toBe(text);
    const tidy = createTokenizer({ ...files, config: { ...files.config, clean_up_tokenization_spaces: true } });
    expect(tidy.decode(tidy.encodeText('a , b .'))).toBe('a , b .');
  });

  it('lets a control token swallow white space only if it says so', () => {
    const added_tokens = files.definition.added_tokens.map((token) => ({ ...token, rstrip: token.content === '<|im_start|>' }));
    const swallowing = createTokenizer({ ...files, definition: { ...files.definition, added_tokens } });
    expect(swallowing.decode(swallowing.encodeRendered('a <|im_start|> b <|im_end|> c'))).toBe('a <|im_start|>b <|im_end|> c');
  });
});

describe('a tokenizer that writes a space before the text', () => {
  const model = { type: 'BPE', vocab: { '▁': 0, a: 1, '▁a': 2, '<t>': 3 }, merges: [['▁', 'a'] as const] };
  const token = { ...files.definition.added_tokens[3]!, id: 3, content: '<t>' };
  const pre_tokenizer = { type: 'Metaspace', replacement: '▁', prepend_scheme: 'first' };
  const spaced = createTokenizer({ ...files, definition: { ...files.definition, added_tokens: [token], model, pre_tokenizer } });

  it('writes it at the beginning, not after a control token, whatever it encoded before', () => {
    for (let round = 0; round < 2; round++) {
      expect([...spaced.encodeRendered('a<t>a<t> a')]).toEqual([2, 3, 1, 3, 2]);
      expect([...spaced.encodeText('a')]).toEqual([2]);
    }
  });
});

describe('a folder that is not a tokenizer', () => {
  const folder = sharedFolder();

  const put = (name: string, content: unknown) =>
    writeFile(join(folder, name), typeof content === 'string' ? content : JSON.stringify(content));

  it('is refused with what is missing or wrong', async () => {
    await expect(loadTokenizer(join(folder, 'nowhere'))).rejects.toMatchObject({ code: 'TOKENIZER_INVALID' });
    const refusals: readonly (readonly [string, unknown, RegExp])[] = [
      ['tokenizer.json', '{"added_tokens": [', /tokenizer\.json is not JSON/],
      ['tokenizer.json', { ...files.definition, added_tokens: [{ id: 'one', content: 'x' }] }, /added_tokens/],
      ['tokenizer.json', files.definition, /tokenizer_config\.json does not exist/],
      ['tokenizer_config.json', { eos_token: '<|im_end|>' }, /no chat template/],
    ];
    for (const [name, content, refusal] of refusals) {
      await put(name, content);
      await expect(loadTokenizer(folder)).rejects.toThrow(refusal);
    }
    await put('tokenizer.json', { ...files.definition, model: { ...files.definition.model, type: 'Telepathy', vocab: [] } });
    await put('chat_template.jinja', 'x');
    await expect(loadTokenizer(folder)).rejects.toMatchObject({ code: 'TOKENIZER_INVALID' });
  });

  it('takes the template from chat_template.jinja, or the one called default', async () => {
    await put('tokenizer.json', files.definition);
    const named = Object.entries({ rag: 'no', default: 'yes' }).map(([name, template]) => ({ name, template }));
    await put('tokenizer_config.json', { chat_template: named });
    await rm(join(folder, 'chat_template.jinja'), { force: true });
    expect((await loadTokenizer(folder)).chatTemplate).toBe('yes');
    await put('chat_template.jinja', 'from the file');
    expect((await loadTokenizer(folder)).chatTemplate).toBe('from the file');
  });
});
