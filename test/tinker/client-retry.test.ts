/** Servers that are away, busy or say nothing, with time limits of a test. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, vi } from 'vitest';
import { Downtime } from '../../src/core/async.ts';
import { HttpClient } from '../../src/tinker/client/http-client.ts';
import { type Script, ScriptedServer } from '../fixtures/tinker/scripted-server.ts';

const poll = { method: 'POST', path: 'retrieve_future', pool: 'train', timeoutMs: 60, body: Buffer.from('{}') } as const;
const never = new AbortController().signal;
const unreachable = { code: 'POLICY_UNREACHABLE' };

interface Asking {
  readonly client: HttpClient;
  readonly server: ScriptedServer;
  readonly downtime: Downtime;
}

async function asking<T>(script: Script, use: (asking: Asking) => Promise<T>, patienceMs = 300): Promise<T> {
  await using server = await ScriptedServer.start(script);
  const downtime = new Downtime();
  const client = new HttpClient({ baseURL: server.url, apiKey: 'key', patienceMs, downtime });
  try {
    return await use({ client, server, downtime });
  } finally {
    client.close();
  }
}

describe('a server that says nothing', () => {
  it('is busy as long as it is alive: a long poll is not yet answered', async () => {
    const script: Script = ({ verb }) => (verb === 'retrieve_future' ? () => undefined : undefined);
    await asking(script, async ({ client, server }) => {
      const reply = await client.ask({ ...poll, longPoll: true }, never);
      expect(reply.status).toBe(408);
      expect(server.of('healthz')).not.toHaveLength(0);
    });
  });

  it('is unreachable after patience where it does not say that it is alive either', async () => {
    await asking(
      () => () => undefined,
      async ({ client }) => {
        const asked = client.ask({ ...poll, longPoll: true }, never);
        await expect(asked).rejects.toMatchObject({ ...unreachable, message: expect.stringMatching(/no answer within 0.06 s/) });
      },
    );
  });

  it('may have done what it was asked, so what must not be done twice is lost', async () => {
    await asking(
      () => () => undefined,
      async ({ client, server }) => {
        const asked = client.ask({ ...poll, path: 'optim_step', repeatable: false }, never);
        await expect(asked).rejects.toMatchObject({ code: 'POLICY_LOST', message: expect.stringMatching(/cannot be known/) });
        expect(server.of('optim_step')).toHaveLength(1);
      },
    );
  });
});

describe('patience with a server that is away', () => {
  const away = { json: {}, status: 503 };
  const ask = (client: HttpClient, patienceMs?: number) => client.ask({ ...poll, timeoutMs: 5000, patienceMs }, never);

  it('is counted as downtime from the first failure until no request is in trouble, answered or not', async () => {
    await asking(
      () => away,
      async ({ client, downtime }) => {
        const [first, second] = [ask(client, 60), ask(client)].map((asked) => expect(asked).rejects.toMatchObject(unreachable));
        await first;
        const atFirst = downtime.milliseconds;
        await second;
        const atSecond = downtime.milliseconds;
        expect(atSecond).toBeGreaterThan(atFirst);
        await sleep(20);
        expect(downtime.milliseconds).toBe(atSecond);
      },
    );
  });

  it('is not given anew to a request that takes the place of one that was given up, but is once the server has answered anyone', async () => {
    let isAway = true;
    await asking(
      () => (isAway ? away : undefined),
      async ({ client, server }) => {
        await expect(ask(client, 80)).rejects.toMatchObject(unreachable);
        const { length } = server.asked;
        await expect(ask(client, 80)).rejects.toMatchObject(unreachable);
        expect(server.asked).toHaveLength(length + 1);
        isAway = false;
        await ask(client);
        isAway = true;
        const asked = ask(client, 10_000);
        isAway = await sleep(30, false);
        expect((await asked).status).toBe(200);
      },
    );
  });

  it('is not used up when the machine’s clock is set', async () => {
    const clock = vi.spyOn(Date, 'now');
    await asking(
      (_, count) => (count === 1 ? away : undefined),
      async ({ client }) => {
        const asked = ask(client, 10_000);
        clock.mockReturnValue(Date.UTC(2100, 0));
        expect((await asked).status).toBe(200);
      },
    );
    clock.mockRestore();
  });
});
