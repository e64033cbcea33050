import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { rawClient } from '../../test/fixtures/gateway/raw-socket.ts';
import { ask, open, until } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import { listen } from './gateway.ts';

const body = JSON.stringify({ messages: ask });

const bytesFor = (session: Session): string =>
  `POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${session.model().apiKey}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;

/** Asks over a socket of its own and closes it when the answer is out of the gateway's hands: read, or left in the kernel. */
async function asked(session: Session, reads: boolean): Promise<void> {
  const { port } = new URL(session.model().baseURL);
  const socket = connect(Number(port), '127.0.0.1').on('error', () => undefined);
  // Before it is connected: then nothing is taken from the kernel.
  if (!reads) socket.pause();
  await once(socket, 'connect');
  socket.write(bytesFor(session));
  if (reads) await once(socket, 'data');
  await until(() => session.turns.length > 0);
  // Until the kernel has it, it is an ordinary hang-up.
  await sleep(50);
  socket.destroy();
  await sleep(50);
}

describe('an answer that its client never read, though the gateway got rid of it', () => {
  it('is given again', async () => {
    const { session, gateway } = open();
    await using _ = await listen(gateway);
    await asked(session, false);
    await asked(session, true);
    expect(session.seal().map(({ undelivered }) => undelivered)).toEqual([undefined]);
  });

  it('nor anyone else is not trained', async () => {
    const { session, gateway } = open();
    await using _ = await listen(gateway);
    await asked(session, false);
    expect(session.seal()).toMatchObject([{ undelivered: true, trainable: false }]);
  });

  it('is not to be confused with one that was read before the client left', async () => {
    const { session, gateway } = open();
    await using _ = await listen(gateway);
    await asked(session, true);
    await asked(session, true);
    expect(session.seal().map(({ undelivered }) => undelivered)).toEqual([undefined, undefined]);
  });

  it('is not to be confused with one on a connection that was idle when it was cut', async () => {
    const { session, gateway } = open();
    await using listener = await listen(gateway, { timeouts: { linger: 50 } });
    using client = await rawClient(listener.origin);
    client.send(bytesFor(session));
    await client.reply();
    await sleep(100);
    client.socket.resetAndDestroy();
    await sleep(50);
    expect(session.seal().map(({ undelivered }) => undelivered)).toEqual([undefined]);
  });
});
