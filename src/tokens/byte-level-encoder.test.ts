import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { awkwardText } from '../../test/fixtures/tokens/awkward-text.ts';
import { files } from '../../test/fixtures/tokens/base.ts';
import { byteLevelEncoder } from './byte-level.ts';
import { createPlainLibrary, createTokenizer, withoutControl } from './tokenizer.ts';
import type { TokenizerDefinition } from './tokenizer-files.ts';

const base = withoutControl(files.definition, files.definition.added_tokens);
const model = (changed: object): TokenizerDefinition => ({ ...base, model: { ...base.model, ...changed } });

const bytes = { type: 'ByteLevel', add_prefix_space: false, use_regex: false };
const split = { type: 'Split', pattern: { Regex: '\\p{L}+' }, behavior: 'Isolated', invert: false };
const splitBy = (changed: object, after: object = bytes) => ({
  ...base,
  pre_tokenizer: { type: 'Sequence', pretokenizers: [{ ...split, ...changed }, after] },
});
const QWEN =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const TEXT = { Sequence: { id: 'A', type_id: 0 } };
const SPECIAL = { SpecialToken: { id: 'a', type_id: 0 } };

function both(definition: TokenizerDefinition, config = {}) {
  const library = createPlainLibrary(definition, { ...files.config, ...config }, 640);
  return {
    encode: byteLevelEncoder(definition, { ...files.config, ...config }, library),
    slowly: (text: string) => library.encode(text, { add_special_tokens: false }).ids,
  };
}

describe('encoding bytes', () => {
  it.each<[string, TokenizerDefinition]>([
    ['as we ship it', base],
    ['with whole words before merges', model({ ignore_merges: true, merges: base.model.merges!.slice(50) })],
    ['with merges written as text', model({ merges: base.model.merges!.map((merge) => [merge].flat().join(' ')) })],
    ['that composes characters', { ...base, normalizer: { type: 'NFC' } }],
    ['with the words of GPT-2', { ...base, pre_tokenizer: { ...bytes, use_regex: true } }],
    ['with the words of Qwen', splitBy({ pattern: { Regex: QWEN } })],
    ['with possessive words', splitBy({ pattern: { Regex: '\\p{L}++|\\p{N}{1,3}+|[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+' } })],
    ['whose pattern leaves text between its words', splitBy({})],
    ['whose pattern also finds nothing', splitBy({ pattern: { Regex: '\\p{L}*' } })],
    ['with control tokens put around it', { ...base, post_processor: { type: 'TemplateProcessing', single: [SPECIAL, TEXT] } }],
  ])('gives what the library gives, for any text: a tokenizer %s', (_, definition) => {
    const { encode, slowly } = both(definition);
    const check = fc.property(awkwardText, (text) => {
      expect(encode!(text)).toEqual(slowly(text));
    });
    fc.assert(check, { numRuns: 1000 });
  });

  it.each<[string, TokenizerDefinition, object?]>([
    ['another model', model({ type: 'WordLevel' })],
    ['merges left out by chance', model({ dropout: 0.1 })],
    ['a token for the unknown', model({ unk_token: 'a' })],
    ['the end of a word marked', model({ end_of_word_suffix: '</w>' })],
    ['the inside of a word marked', model({ continuing_subword_prefix: '##' })],
    ['something in its model that we do not know', model({ continuing_subword_suffix: '@@' })],
    ['tokens that stand for bytes by number', model({ byte_fallback: true })],
    ['unknown tokens joined', model({ fuse_unk: true })],
    ['two tokens with one id', model({ vocab: { ...base.model.vocab, an: Object(base.model.vocab)['a'] } })],
    ['a merge to something that is no token', model({ merges: [...base.model.merges!, ['z', 'ÿ']] })],
    ['merges written in two ways', model({ merges: [...base.model.merges!, 'a n'] })],
    ['characters changed otherwise', { ...base, normalizer: { type: 'NFKC' } }],
    ['no words', { ...base, pre_tokenizer: null }],
    ['a space before the text', { ...base, pre_tokenizer: { ...bytes, add_prefix_space: true, use_regex: true } }],
    ['words split twice', splitBy({}, { ...bytes, use_regex: true })],
    ['separators that are dropped', splitBy({ behavior: 'Removed' })],
    ['words between the matches', splitBy({ invert: true })],
    ['words split at a text', splitBy({ pattern: { String: ' ' } })],
    ['white space that is an added token', { ...base, added_tokens: [{ id: 640, content: '  ', lstrip: false, rstrip: false }] }],
    ['something unknown done afterwards', { ...base, post_processor: { type: 'BertProcessing', sep: ['a', 1], cls: ['b', 2] } }],
    ['its text twice', { ...base, post_processor: { type: 'TemplateProcessing', single: [TEXT, TEXT] } }],
    ['text in lower case', base, { do_lowercase_and_remove_accent: true }],
    ['white space removed', base, { remove_space: true }],
  ])('is left to the library for a tokenizer with %s', (_, definition, config = {}) => {
    expect(both(definition, config).encode).toBeUndefined();
  });

  it('leaves bytes without a token out, as the library does', () => {
    const without = (bytes: string) => {
      const vocab = Object.fromEntries(Object.entries(base.model.vocab).filter(([token]) => !bytes.includes(token)));
      return both(model({ vocab }));
    };
    const { encode, slowly } = without('ñô');
    const check = fc.property(awkwardText, (text) => {
      expect(encode!(text)).toEqual(slowly(text));
    });
    fc.assert(check, { numRuns: 300 });
    expect(encode!('a\u{40000}b')).toHaveLength(5);
    // Its merges begin with this one.
    expect(without('Ġ').encode).toBeUndefined();
  });

  it('takes each of Unicode’s digits for a word, for a tokenizer that splits digits', () => {
    const digits = { type: 'Digits', individual_digits: true };
    const words = { ...bytes, use_regex: true };
    const { encode, slowly } = both({ ...base, pre_tokenizer: { type: 'Sequence', pretokenizers: [digits, words] } });
    const { encode: encodeByRegex } = both(
      splitBy({ pattern: { Regex: "\\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+" } }),
    );
    const check = fc.property(awkwardText, (text) => {
      expect(encode!(text)).toEqual(encodeByRegex!(text));
      if (!/[^0-9\P{N}]/u.test(text)) expect(encode!(text)).toEqual(slowly(text));
    });
    fc.assert(check, { numRuns: 500 });
  });

  it('encodes a word of a megabyte', () => {
    const tokenizer = createTokenizer(files);
    const word = 'pneumono'.repeat(131_072);
    expect(tokenizer.decode(tokenizer.encodeText(word))).toBe(word);
  });

  it('is right about the first words after more words than it remembers', () => {
    const { encode, slowly } = both(base);
    const word = (i: number) => i.toString(16).replace(/\d/g, (digit) => 'ghijklmnop'[Number(digit)]!);
    const texts = Array.from({ length: 40 }, (_, i) => Array.from({ length: 1000 }, (_, j) => word(i * 1000 + j)).join(' '));
    const expected = texts.map(slowly);
    expect(new Set(texts.flatMap((text) => text.split(' '))).size).toBe(40_000);
    for (let round = 0; round < 2; round++) expect(texts.map((text) => encode!(text))).toEqual(expected);
  });

  it('makes no control token from text, where the vocabulary could', () => {
    const { definition } = files;
    const vocab = { ...definition.model.vocab, '<t': 640, '<t>': 641, '<t>!': 642 };
    const merges = [['<', 't'] as const, ['<t', '>'] as const, ['<t>', '!'] as const];
    for (const ignore_merges of [false, true]) {
      const changed = { ...definition.model, vocab, merges, ignore_merges };
      const token = { ...definition.added_tokens[3]!, id: 641, content: '<t>' };
      const tokenizer = createTokenizer({
        ...files,
        definition: { ...splitBy({ pattern: { Regex: '\\S+' } }), added_tokens: [token], model: changed },
      });
      const [open, close, mark] = ['<t', '>', '!'].map((text) => tokenizer.idOf(text)!);
      expect([...tokenizer.encodeText('<t>')]).toEqual([open, close]);
      expect([...tokenizer.encodeText('<t>!!')]).toEqual([open, close, mark, mark]);
      expect([...tokenizer.encodeRendered('<t><t>!')]).toEqual([641, 641, mark]);
    }
  });
});
