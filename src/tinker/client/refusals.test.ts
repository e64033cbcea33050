import { describe, expect, it } from 'vitest';
import { Refusals } from './refusals.ts';

const reply = (value: unknown, contentType = 'application/json') => ({
  status: 400,
  contentType,
  retryAfter: undefined,
  body: Buffer.from(contentType === 'application/json' ? JSON.stringify(value) : String(value)),
});

describe('a key that a server sends back is not shown', () => {
  const quoted = 'tml-with"quotes"and\\more';
  const long = `tml-${'0123456789'.repeat(60)}`;

  it.each([
    ['in a text', quoted, { detail: `the key ${quoted} is bad` }, 'the key *** is bad'],
    ['in an object', quoted, { detail: { key: quoted } }, '{"key":"***"}'],
    ['longer than what is quoted', long, { detail: long }, '***'],
  ])('%s', (_, key, value, says) => {
    expect(new Refusals(key, 'http://x').ofStatus(reply(value), 'asample').message).toBe(
      `the server answered 400 to asample: ${says}`,
    );
  });

  it('cut off in a page', () => {
    const { message } = new Refusals(long, 'http://x').garbled(reply(`<p>${long}</p>`, 'text/html'), 'asample');
    expect(message).not.toContain('0123');
    expect(message).toContain('it begins: <p>***');
  });
});
