import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { rawClient, repliesIn } from '../../test/fixtures/gateway/raw-socket.ts';
import { ANSWER, open, say, slowly, until } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import { listen } from './gateway.ts';

/** A question, as the bytes of a request. */
function bytesOf(session: Session, content: string, more: object = {}): string {
  const text = JSON.stringify({ messages: [{ role: 'user', content }], ...more });
  const head = ['POST /v1/chat/completions HTTP/1.1', 'host: localhost', `authorization: Bearer ${session.model().apiKey}`];
  return `${[...head, 'content-type: application/json', `content-length: ${Buffer.byteLength(text)}`].join('\r\n')}\r\n\r\n${text}`;
}

describe('questions sent on one connection before the first is answered', () => {
  it('are answered in order', async () => {
    const { gateway, session } = open();
    await using listener = await listen(gateway);
    using client = await rawClient(listener.origin);
    client.send(bytesOf(session, 'one') + bytesOf(session, 'two'));
    await until(() => repliesIn(client.text()).length === 2);
    expect(repliesIn(client.text()).map(({ status }) => status)).toEqual([200, 200]);
    expect(session.seal().map(({ undelivered }) => undelivered)).toEqual([undefined, undefined]);
  });

  it.each([false, true])('are all cancelled when the client hangs up (streamed: %s)', async (stream) => {
    const cancelled: number[] = [];
    const { gateway, session, engine } = open({
      reply: (_, call, signal) => {
        signal?.addEventListener('abort', () => cancelled.push(call));
        return slowly(say(ANSWER), 40, signal);
      },
    });
    await using listener = await listen(gateway);
    const client = await rawClient(listener.origin);
    client.send(bytesOf(session, 'one', { stream }) + bytesOf(session, 'two', { stream }));
    await until(() => engine.requests.length === 2);
    client.socket.destroy();
    await until(() => cancelled.length === 2);
    await sleep(50);
    expect(session.turns).toEqual([]);
  });

  it('are not trained where none of the answers was read', async () => {
    const { gateway, session } = open();
    await using listener = await listen(gateway);
    const client = await rawClient(listener.origin);
    client.socket.pause();
    client.send(bytesOf(session, 'one') + bytesOf(session, 'two'));
    await until(() => session.turns.length === 2);
    await sleep(50);
    client.socket.resetAndDestroy();
    await sleep(50);
    expect(session.seal().map(({ undelivered }) => undelivered)).toEqual([true, true]);
  });
});
