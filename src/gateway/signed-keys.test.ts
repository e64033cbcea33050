import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type Grant, Keyring } from './identity.ts';
import { CAPABILITIES } from './wire-protocol.ts';

const grants: fc.Arbitrary<Grant> = fc.record({
  capability: fc.constantFrom(...CAPABILITIES),
  rollout: fc.option(fc.string({ unit: 'binary' }), { nil: undefined }),
  role: fc.option(fc.string(), { nil: undefined }),
  session: fc.option(fc.nat(), { nil: undefined }),
});

describe('a key', () => {
  it('stands for what it was made for, at its own gateway only', () => {
    const [keyring, other] = [new Keyring(), new Keyring()];
    const made = new Set<string>();
    fc.assert(
      fc.property(grants, (grant) => {
        const wellFormed = { ...grant, rollout: grant.rollout?.toWellFormed(), role: grant.role?.toWellFormed() };
        const key = keyring.make(wellFormed);
        expect(key).toMatch(/^ty-[\w-]+\.[\w-]{43}$/);
        // The second time it is remembered.
        expect([keyring.read(key), keyring.read(key)]).toEqual([wellFormed, wellFormed]);
        expect([other.read(key), made.has(key)]).toEqual([undefined, false]);
        made.add(key);
      }),
    );
  });

  it('with anything changed in it is none', () => {
    const keyring = new Keyring();
    const key = keyring.make({ capability: 'agent', rollout: 'r1', role: 'default' });
    const others = [`${key}A`, `${key}=`, `${key} `, key.slice(0, -1), key.slice(3), `ty-.${key.split('.')[1]}`, '', 'ty-', '.'];
    const wrong = new Set(others);
    for (let i = 0; i < key.length; i++) {
      for (const char of 'Aa0_.') if (char !== key[i]) wrong.add(key.slice(0, i) + char + key.slice(i + 1));
    }
    // Of the last letter two bits say nothing: another spelling of the same bytes is another key.
    for (const char of 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_') {
      if (!key.endsWith(char)) wrong.add(key.slice(0, -1) + char);
    }
    for (const one of wrong) expect(keyring.read(one), one).toBeUndefined();
    expect(keyring.read(key)).toBeDefined();
  });

  it('cannot be given more by swapping its payload', () => {
    const keyring = new Keyring();
    const signature = keyring.make({ capability: 'agent' }).split('.')[1];
    const payload = Buffer.from(JSON.stringify(['admin', null, null, null, 0])).toString('base64url');
    expect(keyring.read(`ty-${payload}.${signature}`)).toBeUndefined();
  });
});
