/** The whole body of a request, up to a limit. By events: an async iterator costs more than the rest. */
import type { IncomingMessage } from 'node:http';
import { Refusal } from './http-errors.ts';

/** `tooLarge` makes the error for a body of more than `most` bytes; what was read of it is dropped. */
export function wholeBody(incoming: IncomingMessage, most: number, tooLarge: () => Error): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    if (Number(incoming.headers['content-length'] ?? 0) > most) return reject(tooLarge());
    const chunks: Buffer[] = [];
    let size = 0;
    const take = (chunk: Buffer): void => {
      size += chunk.length;
      if (size <= most) return void chunks.push(chunk);
      chunks.length = 0;
      incoming.off('data', take);
      reject(tooLarge());
    };
    // Every request closes in the end; an error made for each, with its stack, would cost as much as reading the body.
    const brokenOff = (): void => {
      if (!incoming.readableEnded) reject(new Refusal('malformed_http', 'the body broke off'));
    };
    if (incoming.destroyed) return brokenOff();
    incoming.on('data', take);
    incoming.once('end', () => resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks)));
    incoming.once('error', brokenOff);
    incoming.once('close', brokenOff);
  });
}
