import { Duplex, PassThrough } from 'node:stream';
import { serialize } from 'node:v8';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { openChannel } from './channel.ts';

function ear() {
  const incoming = new PassThrough();
  const outgoing: Buffer[] = [];
  const pipe = new Duplex({
    read: () => {},
    write: (chunk: Buffer, _encoding, done) => {
      outgoing.push(chunk);
      done();
    },
  });
  incoming.on('data', (chunk) => pipe.push(chunk));
  incoming.on('end', () => pipe.push(null));
  const heard: unknown[] = [];
  const ended: unknown[] = [];
  const channel = openChannel(pipe, { message: (message) => heard.push(message), ended: (why) => ended.push(why) });
  return { incoming, outgoing, heard, ended, channel };
}

const turn = (): Promise<void> => new Promise((resolve) => void setImmediate(resolve));

describe('a channel', () => {
  it('gives what was sent, in order, however the bytes are cut', async () => {
    const values = fc.array(fc.oneof(fc.string(), fc.double(), fc.record({ kind: fc.string(), id: fc.string() })), {
      maxLength: 8,
    });
    await fc.assert(
      fc.asyncProperty(values, fc.infiniteStream(fc.integer({ min: 1, max: 40 })), async (messages, sizes) => {
        const [speaker, listener] = [ear(), ear()];
        for (const message of messages) speaker.channel.send(message);
        const bytes = Buffer.concat(speaker.outgoing);
        for (let at = 0; at < bytes.length; ) {
          const size = sizes.next().value as number;
          listener.incoming.write(bytes.subarray(at, at + size));
          at += size;
        }
        await turn();
        expect(listener.heard).toEqual(messages);
        expect(listener.ended).toEqual([]);
      }),
      { numRuns: 50 },
    );
  });

  it('throws for what cannot be copied, and writes nothing of it', () => {
    const { channel, outgoing } = ear();
    expect(() => channel.send({ grade: () => 1 })).toThrow(/could not be cloned/);
    expect(outgoing).toEqual([]);
  });

  it('ends, once, with bytes that are no message, and hears nothing after them', async () => {
    const { incoming, heard, ended } = ear();
    incoming.write(Buffer.from([0, 0, 0, 3, 1, 2, 3]));
    const fine = serialize('fine');
    incoming.write(Buffer.concat([Buffer.from([0, 0, 0, fine.length]), fine]));
    await turn();
    expect([heard, ended]).toEqual([[], ['bytes that are no message']]);
  });

  it('ends with a message too long to be one, before it has come', async () => {
    const { incoming, ended } = ear();
    incoming.write(Buffer.alloc(8, 0xff));
    await turn();
    expect(ended).toEqual(['a message of 4294967295 bytes']);
  });

  it('ends without a reason when the other side closes it', async () => {
    const { incoming, ended } = ear();
    incoming.end();
    await turn();
    await turn();
    expect(ended).toEqual([undefined]);
  });
});
