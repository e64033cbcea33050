/**
 * Messages between a pool and one of its processes, over a pipe of their own: structured clones, each behind its length.
 *
 * Not Node's own channel: there, bytes that are no message are an exception in whoever reads them, and every module of a child can listen
 * and speak. Here such bytes end the channel, and only who opened it has it. `send` throws for what cannot be copied, before anything
 * is written.
 */
import type { Duplex } from 'node:stream';
import v8 from 'node:v8';

/** Kept from a user's module that replaces them. */
const { serialize, deserialize } = v8;

const HEADER_BYTES = 4;
/** More is no message, but someone filling this process's memory. */
const MOST_BYTES = 2 ** 28;

export interface Channel {
  /** `sent` is called when it was handed to the system. */
  send(message: unknown, sent?: () => void): void;
}

interface ChannelEars {
  message(message: unknown): void;
  /** Once. No message comes after it. `why` is undefined where the other side just closed it. */
  ended(why: string | undefined): void;
}

export function openChannel(pipe: Duplex, { message, ended }: ChannelEars): Channel {
  let isOver = false;
  const end = (why: string | undefined): void => {
    if (isOver) return;
    isOver = true;
    pipe.destroy();
    ended(why);
  };
  const frames = new Frames();
  pipe.on('data', (chunk: Buffer) => {
    if (isOver) return;
    let heard: unknown[];
    try {
      heard = frames.add(chunk).map((frame) => deserialize(frame) as unknown);
    } catch (thrown) {
      end(thrown instanceof TooLong ? thrown.message : 'bytes that are no message');
      return;
    }
    for (const one of heard) message(one);
  });
  pipe.on('error', () => end(undefined));
  pipe.on('end', () => end(undefined));
  pipe.on('close', () => end(undefined));
  const write = pipe.write.bind(pipe);
  return {
    send(value, sent) {
      const body = serialize(value);
      const frame = Buffer.allocUnsafe(HEADER_BYTES + body.length);
      frame.writeUInt32BE(body.length, 0);
      body.copy(frame, HEADER_BYTES);
      write(frame, sent);
    },
  };
}

class TooLong extends Error {}

/** Puts a stream of bytes back into messages. Bytes are copied only where a message came in several pieces. */
class Frames {
  #pieces: Buffer[] = [];
  #bytes = 0;
  /** That the first message needs, its header included; 0 while its header is not there. */
  #needed = 0;

  /** The messages that are complete with it. Throws TooLong. */
  add(chunk: Buffer): Buffer[] {
    this.#pieces.push(chunk);
    this.#bytes += chunk.length;
    if (this.#bytes < Math.max(this.#needed, HEADER_BYTES)) return [];
    const all = this.#pieces.length === 1 ? chunk : Buffer.concat(this.#pieces);
    const complete: Buffer[] = [];
    let at = 0;
    this.#needed = 0;
    while (all.length - at >= HEADER_BYTES) {
      const length = all.readUInt32BE(at);
      if (length > MOST_BYTES) throw new TooLong(`a message of ${length} bytes`);
      if (all.length - at < HEADER_BYTES + length) {
        this.#needed = HEADER_BYTES + length;
        break;
      }
      complete.push(all.subarray(at + HEADER_BYTES, at + HEADER_BYTES + length));
      at += HEADER_BYTES + length;
    }
    this.#pieces = at < all.length ? [all.subarray(at)] : [];
    this.#bytes = all.length - at;
    return complete;
  }
}
