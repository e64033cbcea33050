/**
 * Our tokenizer gives the ids of the tokenizer library as it is, for text without stray control tokens: of whole rendered conversations
 * and of text by itself; and what it encodes it decodes.
 */
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import type { Message } from '../../../src/core/types.ts';
import { byteLevelEncoder } from '../../../src/tokens/byte-level.ts';
import { withoutControl } from '../../../src/tokens/tokenizer.ts';
import type { TokenizerFiles } from '../../../src/tokens/tokenizer-files.ts';
import { awkwardText } from '../../fixtures/tokens/awkward-text.ts';
import { drawConversation, drawText, SNIPPETS, seeded } from './conversations.ts';
import { MODELS, type ModelName } from './models.ts';

const STRINGS = 5000;
const NAMES = ['Qwen2.5', 'Qwen3', 'Llama-3.1', 'Mistral Nemo'] as const satisfies readonly ModelName[];
/** Without anything that reads like a part of a control token. */
const HARMLESS = [SNIPPETS[0], SNIPPETS[4]];

/** Some tokenizers compose characters before they encode. */
const showing = (files: TokenizerFiles) => (text: string) =>
  files.definition['normalizer'] === null ? text : text.normalize('NFC');

describe.each(NAMES)('the tokenizer of %s', (name) => {
  it('has the ids and the text of the library as it is', { timeout: 300_000 }, async () => {
    const { files, tokenizer } = await MODELS[name]();
    const reference = new HuggingFaceTokenizer(files.definition, files.config);
    const shown = showing(files);
    const different: string[] = [];
    let tokens = 0;
    for (let seed = 0; seed < STRINGS; seed++) {
      const random = seeded(seed);
      const text = Array.from({ length: 3 }, () => drawText(random, HARMLESS)).join('');
      const ids = tokenizer.encodeText(text);
      tokens += ids.length;
      const expected = reference.encode(text, { add_special_tokens: false }).ids;
      if (ids.join() !== expected.join() || tokenizer.decode(ids) !== shown(text)) different.push(text);
    }
    expect(different.slice(0, 3)).toEqual([]);
    expect(tokens).toBeGreaterThan(STRINGS);
  });

  it('encodes any text by itself, to the ids of the library', { timeout: 300_000 }, async () => {
    const { files, tokenizer } = await MODELS[name]();
    const reference = new HuggingFaceTokenizer(files.definition, files.config);
    const textOnly = withoutControl(files.definition, files.definition.added_tokens);
    expect(byteLevelEncoder(textOnly, files.config, reference)).toBeDefined();
    const check = fc.property(awkwardText, (text) => {
      expect([...tokenizer.encodeText(text)]).toEqual(reference.encode(text, { add_special_tokens: false }).ids);
    });
    fc.assert(check, { numRuns: STRINGS });
  });

  it('gives whole conversations the ids of their rendered text', { timeout: 300_000 }, async () => {
    const { files, template, renderer, tokenizer } = await MODELS[name]();
    const shown = showing(files);
    const reference = new HuggingFaceTokenizer(files.definition, files.config);
    const different: string[] = [];
    let compared = 0;
    for (let seed = 0; compared < STRINGS; seed++) {
      const drawn = drawConversation(seeded(seed), { thoughts: name === 'Qwen3', calls: 1, anyOrder: false }, HARMLESS);
      const { said, next } = drawn.turns[0]!;
      const messages: Message[] = [...drawn.opening, said, ...next];
      const rendered = template.textOf(messages, drawn.tools, true);
      // Mistral's template refuses some orders of roles.
      if (rendered === undefined) continue;
      compared++;
      const ids = renderer.open(messages, drawn.tools);
      const expected = reference.encode(rendered, { add_special_tokens: false }).ids;
      if (ids.join() !== expected.join() || tokenizer.decode(ids) !== shown(rendered)) different.push(rendered);
    }
    expect(different.slice(0, 3)).toEqual([]);
  });
});
