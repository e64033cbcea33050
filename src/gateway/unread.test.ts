import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { ask, open, until } from '../../test/fixtures/gateway/streams.ts';
import type { Session } from '../core/contracts.ts';
import { listen } from './listener.ts';

const body = JSON.stringify({ messages: ask });

/** Asks over a socket of its own and closes it when the answer is out of the gateway's hands: read, or left in the kernel. */
async function asked(session: Session, reads: boolean): Promise<void> {
  const { baseURL, apiKey } = session.model();
  const { port, pathname } = new URL(baseURL);
  const socket = connect(Number(port), '127.0.0.1').on('error', () => undefined);
  // Before it is connected: then nothing is taken from the kernel.
  if (!reads) socket.pause();
  await once(socket, 'connect');
  socket.write(
    `POST ${pathname}/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${apiKey}\r\ncontent-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
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
});
