/**
 * An HTTP client that costs as little as possible, so that the server is what is measured: one keep-alive socket, one request at a
 * time, the reply read only as far as is needed to know that it is complete.
 *
 * Knows replies with a content-length and chunked ones, nothing else.
 */
import { connect, type Socket } from 'node:net';

export interface Answered {
  readonly status: number;
  /** Head and body as they came, chunk sizes included. */
  readonly raw: string;
}

const LAST_CHUNK = '\r\n0\r\n\r\n';
const END_OF_HEAD = Buffer.from('\r\n\r\n');

interface Waiting {
  resolve(answered: Answered): void;
  reject(reason: Error): void;
  onFirstByte: (() => void) | undefined;
}

export class Connection {
  readonly #socket: Socket;
  #waiting: Waiting | undefined;
  #chunks: Buffer[] = [];
  #size = 0;
  /** Bytes of the whole reply; undefined until its head is there, Infinity where it is chunked. */
  #expected: number | undefined;
  #status = 0;
  #tail = '';

  constructor(port: number) {
    this.#socket = connect({ port, host: '127.0.0.1', noDelay: true });
    this.#socket.on('data', (chunk) => this.#read(chunk));
    this.#socket.on('error', (error) => this.#waiting?.reject(error));
    this.#socket.on('close', () => this.#waiting?.reject(new Error('the server hung up')));
  }

  ask(head: string, body: Buffer, onFirstByte?: () => void): Promise<Answered> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject, onFirstByte };
      this.#socket.cork();
      this.#socket.write(`${head}content-length: ${body.length}\r\n\r\n`, 'latin1');
      this.#socket.write(body);
      this.#socket.uncork();
    });
  }

  close(): void {
    this.#socket.destroy();
  }

  #read(chunk: Buffer): void {
    if (this.#size === 0) this.#waiting?.onFirstByte?.();
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    if (this.#expected === undefined) this.#readHead();
    if (this.#expected === Number.POSITIVE_INFINITY) {
      this.#tail = (this.#tail + chunk.toString('latin1', Math.max(0, chunk.length - LAST_CHUNK.length))).slice(
        -LAST_CHUNK.length,
      );
      if (this.#tail === LAST_CHUNK) this.#finish();
    } else if (this.#expected !== undefined && this.#size >= this.#expected) this.#finish();
  }

  #readHead(): void {
    const so = this.#chunks.length === 1 ? this.#chunks[0]! : Buffer.concat(this.#chunks);
    const end = so.indexOf(END_OF_HEAD);
    if (end === -1) return;
    const head = so.toString('latin1', 0, end);
    this.#status = Number(head.slice(9, 12));
    const length = /\r\ncontent-length: *(\d+)/i.exec(head)?.[1];
    this.#expected = length === undefined ? Number.POSITIVE_INFINITY : end + END_OF_HEAD.length + Number(length);
  }

  #finish(): void {
    const chunks = this.#chunks;
    const answered = {
      status: this.#status,
      get raw() {
        return Buffer.concat(chunks).toString();
      },
    };
    const waiting = this.#waiting;
    this.#waiting = undefined;
    this.#chunks = [];
    this.#size = 0;
    this.#expected = undefined;
    this.#tail = '';
    waiting?.resolve(answered);
  }
}
