import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { createProtector } from './chat-template.ts';

const tokens = ['<|im_start|>', '<tool_call>', '</tool_call>', '[INST]', '<s>', 'ⓔⓞⓢ', '-^]\\'];

/** A template that breaks off every token at every place. */
const template = tokens.flatMap((token) => [...token].map((_, i) => `'${token.slice(0, i + 1)}'`)).join();

describe('protected text', () => {
  it('cannot complete a control token, whatever part of it stands before and after', () => {
    const protector = createProtector(tokens, template);
    for (const token of tokens) {
      for (let from = 0; from < token.length; from++) {
        for (let to = from + 1; to <= token.length; to++) {
          const part = token.slice(from, to);
          const { protect, restore } = protector.begin(part);
          const joined = token.slice(0, from) + protect(part) + token.slice(to);
          expect(joined).not.toContain(token);
          expect(restore(joined)).toBe(token);
        }
      }
    }
  });

  it('comes back as it was, whatever private characters it holds', () => {
    const text = fc.array(fc.oneof(fc.string({ unit: 'binary' }), fc.constantFrom(...tokens, '\u007F', '\uE000', '\uE001')), {
      maxLength: 8,
    });
    fc.assert(
      fc.property(text, (parts) => {
        const whole = parts.join('');
        const { protect, restore } = createProtector(tokens, template).begin(whole);
        expect(restore(protect(whole))).toBe(whole);
      }),
      { numRuns: 500 },
    );
  });

  it('is left alone where it cannot become part of a control token', () => {
    const { protect } = createProtector(['<|im_start|>'], "{{ '<|im_start|>' + m.content }}").begin('');
    for (const text of ['', ' \n', 'im_start', 'tool | call']) expect(protect(text)).toBe(text);
    expect(protect('a < b')).not.toBe('a < b');
  });

  it('keeps its white space where it is', () => {
    const { protect, restore } = createProtector(['<s>'], '').begin('');
    expect(restore(protect(' \t<s> \n').trim())).toBe('<s>');
    // White space in Python, where templates come from, though not in JavaScript.
    const [before, after] = protect('\u0085\u001C<s>\u001F')
      .split(/<.*>/)
      .map((text) => text.replaceAll('\u007F', '|'));
    expect([before, after]).toEqual(['\u0085\u001C|', '|\u001F']);
  });
});
