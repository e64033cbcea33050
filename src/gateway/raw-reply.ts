/**
 * Replies to what never became a request: bytes that are not HTTP, headers that do not end, a wish to speak another protocol. Written
 * to the socket by hand, as JSON like every other error, and the end of the connection.
 */
import { STATUS_CODES } from 'node:http';
import type { Duplex } from 'node:stream';
import { failureOf, openAIError, Refusal } from './http-errors.ts';

/** What is wrong, by the code of Node's parser. */
export function refusalOf({ code }: NodeJS.ErrnoException): Refusal {
  if (code === 'HPE_HEADER_OVERFLOW') return new Refusal('headers_too_large', 'the headers are larger than 16 KiB');
  if (code === 'HPE_CHUNK_EXTENSIONS_OVERFLOW') return new Refusal('request_too_large', 'the chunk extensions are too large');
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return new Refusal('request_timeout', 'the request did not arrive in time');
  return new Refusal('malformed_http', 'this is not an HTTP/1.1 request');
}

export const upgradeRequired = (): Refusal =>
  new Refusal('upgrade_required', 'only HTTP/1.1 is spoken here', 'send the request without Upgrade', { upgrade: 'HTTP/1.1' });

/** `lingerMs`: how long the other side may take to read it; a connection closed over unread bytes would lose the reply too. */
export function endWith(refusal: Refusal, socket: Duplex, lingerMs: number): void {
  const failure = failureOf(refusal);
  const body = JSON.stringify(openAIError(failure));
  const headers = {
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
    connection: 'close',
    ...failure.headers,
  };
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.on('error', () => socket.destroy());
  socket.end(`HTTP/1.1 ${failure.status} ${STATUS_CODES[failure.status]}\r\n${lines.join('')}\r\n${body}`);
  socket.resume();
  setTimeout(() => socket.destroy(), lingerMs).unref();
}
