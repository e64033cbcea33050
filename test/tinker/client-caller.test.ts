/**
 * Servers that take a request and say nothing, with time limits of a test.
 */
import { describe, expect, it } from 'vitest';
import { Caller } from '../../src/tinker/client/caller.ts';
import { HttpClient } from '../../src/tinker/client/http.ts';
import { Trouble } from '../../src/tinker/client/patience.ts';
import { Refusals } from '../../src/tinker/client/refusals.ts';
import { type Script, ScriptedServer } from '../fixtures/tinker/scripted-server.ts';

const poll = { method: 'POST', path: '/api/v1/retrieve_future', pool: 'train', timeoutMs: 60, body: Buffer.from('{}') } as const;

async function asking<T>(script: Script, use: (caller: Caller, server: ScriptedServer) => Promise<T>): Promise<T> {
  await using server = await ScriptedServer.start(script);
  const http = new HttpClient(server.url, 'key');
  const trouble = new Trouble(() => undefined);
  const caller = new Caller({ http, refusals: new Refusals('key', server.url), trouble, patienceMs: 300 });
  try {
    return await use(caller, server);
  } finally {
    http.close();
  }
}

const options = { signal: new AbortController().signal, repeatable: true };

describe('a server that says nothing', () => {
  it('is busy as long as it is alive: a long poll is not yet answered', async () => {
    const script: Script = ({ verb }) => (verb === 'retrieve_future' ? () => undefined : undefined);
    await asking(script, async (caller, server) => {
      const reply = await caller.ask(poll, 'retrieve_future', { ...options, longPoll: true });
      expect(reply.status).toBe(408);
      expect(server.of('healthz')).toHaveLength(1);
    });
  });

  it('is unreachable after patience where it does not say that it is alive either', async () => {
    await asking(
      () => () => undefined,
      async (caller) => {
        const asked = caller.ask(poll, 'retrieve_future', { ...options, longPoll: true });
        await expect(asked).rejects.toMatchObject({
          code: 'POLICY_UNREACHABLE',
          message: expect.stringMatching(/no answer within 0.06 s/),
        });
      },
    );
  });

  it('may have done what it was asked, so what must not be done twice is lost', async () => {
    const script: Script = () => () => undefined;
    await asking(script, async (caller, server) => {
      const asked = caller.ask({ ...poll, path: '/api/v1/optim_step' }, 'optim_step', { ...options, repeatable: false });
      await expect(asked).rejects.toMatchObject({ code: 'POLICY_LOST', message: expect.stringMatching(/cannot be known/) });
      expect(server.of('optim_step')).toHaveLength(1);
    });
  });
});
