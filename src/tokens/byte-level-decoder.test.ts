import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { files as base } from '../../test/fixtures/tokens/base.ts';
import { createTokenizer } from './tokenizer.ts';

/** Blanks that are added tokens are text, as in some published tokenizers. */
const blank = { id: 640, content: '   ', lstrip: false, rstrip: false, normalized: false, special: false };
const { definition } = base;
const files = { ...base, definition: { ...definition, added_tokens: [...definition.added_tokens, blank] } };
const tokenizer = createTokenizer(files);
const library = new HuggingFaceTokenizer(files.definition, files.config);

/** The library's way; an id that is no token's breaks off what comes before. */
function slowly(ids: readonly number[]): string {
  const unknown = ids.findIndex((id) => id >= tokenizer.vocabSize);
  if (unknown !== -1) return `${slowly(ids.slice(0, unknown))}\uFFFD${slowly(ids.slice(unknown + 1))}`;
  if (ids.length === 0) return '';
  return library.decode([...ids], { skip_special_tokens: false, clean_up_tokenization_spaces: false });
}

describe('decoding bytes', () => {
  it('gives what the library gives, for any ids', () => {
    const id = fc.integer({ min: 0, max: tokenizer.vocabSize + 2 });
    const ids = fc.oneof(fc.array(id), fc.array(fc.integer({ min: 0, max: 260 }), { maxLength: 200 }));
    fc.assert(
      fc.property(ids, (given) => {
        expect(tokenizer.decode(given)).toBe(slowly(given));
      }),
      { numRuns: 2000 },
    );
  });

  it('gives back any text, also one longer than any before', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary', maxLength: 3000, size: 'max' }), (text) => {
        expect(tokenizer.decode(tokenizer.encodeText(text))).toBe(text.toWellFormed());
      }),
      { numRuns: 100 },
    );
  });

  it('keeps bytes on the two sides of a control token apart', () => {
    const [first, second] = tokenizer.encodeText('é').length === 2 ? tokenizer.encodeText('é') : tokenizer.encodeText('ÿ');
    const control = tokenizer.idOf('<|im_end|>')!;
    expect(tokenizer.decode([first!, control, second!])).toBe('\uFFFD<|im_end|>\uFFFD');
  });
});
