/**
 * A line that fails as networks do: a TCP proxy before any port, of PostgreSQL or of an engine. Its mode can be changed at any time and
 * holds for connections that are open as well as for new ones; what passes is passed unchanged and in order. Knows no protocol.
 */
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { randomStream } from '../../src/engines/embedded/random.ts';

/**
 * - `refuse`: new connections are reset at once; those that are open stay, as when a server takes no more.
 * - `hang`: connections are accepted, and nothing is forwarded in either direction.
 * - `slow`: at most so many bytes per interval in each direction of each connection.
 */
export type Mode =
  | { readonly kind: 'pass' | 'refuse' | 'hang' }
  | { readonly kind: 'slow'; readonly bytes: number; readonly everyMs: number };

export interface FaultProxy extends AsyncDisposable {
  readonly port: number;
  /** Open connections. */
  readonly open: number;
  set(mode: Mode): void;
  /** Resets every open connection, in the middle of whatever it is saying. */
  cut(): void;
}

interface Line {
  readonly client: Socket;
  readonly upstream: Socket;
  readonly pumps: readonly Pump[];
}

export async function faultProxy(target: number, host = '127.0.0.1'): Promise<FaultProxy> {
  let mode: Mode = { kind: 'pass' };
  const lines = new Set<Line>();
  const server = createServer({ allowHalfOpen: true, pauseOnConnect: true }, (client) => {
    client.on('error', () => {});
    if (mode.kind === 'refuse') return void client.resetAndDestroy();
    const upstream = connect({ port: target, host, allowHalfOpen: true });
    const line = { client, upstream, pumps: [new Pump(client, upstream, mode), new Pump(upstream, client, mode)] };
    lines.add(line);
    // The server may be done and gone while its last bytes are still held here.
    client
      .on('error', () => reset(line))
      .on('close', () => {
        upstream.destroy();
        lines.delete(line);
      });
    upstream.on('error', () => reset(line));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const cut = (): void => {
    for (const line of lines) reset(line);
    lines.clear();
  };
  return {
    port: (server.address() as AddressInfo).port,
    get open() {
      return lines.size;
    },
    set(next) {
      mode = next;
      for (const { pumps } of lines) for (const pump of pumps) pump.set(next);
    },
    cut,
    async [Symbol.asyncDispose]() {
      cut();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function reset({ client, upstream, pumps }: Line): void {
  for (const pump of pumps) pump.stop();
  client.resetAndDestroy();
  upstream.resetAndDestroy();
}

/** One direction of a connection. Holds what came and may not yet go, and reads no more while it holds something. */
class Pump {
  readonly #from: Socket;
  readonly #to: Socket;
  #mode: Mode;
  #held = Buffer.alloc(0);
  #ended = false;
  #timer: NodeJS.Timeout | undefined;

  constructor(from: Socket, to: Socket, mode: Mode) {
    this.#from = from;
    this.#to = to;
    this.#mode = mode;
    from.on('data', (chunk: Buffer) => {
      this.#held = Buffer.concat([this.#held, chunk]);
      this.#move();
    });
    from.on('end', () => {
      this.#ended = true;
      this.#move();
    });
    to.on('drain', () => this.#move());
    this.#move();
  }

  set(mode: Mode): void {
    this.stop();
    this.#mode = mode;
    this.#move();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #move(): void {
    const most = this.#mode.kind === 'slow' ? this.#mode.bytes : this.#mode.kind === 'hang' ? 0 : Infinity;
    if (this.#timer === undefined && most > 0 && !this.#to.destroyed) {
      if (this.#held.length > 0) this.#to.write(this.#held.subarray(0, most));
      this.#held = this.#held.subarray(most);
      if (this.#ended && this.#held.length === 0) this.#to.end();
      else if (this.#mode.kind === 'slow') this.#timer = setTimeout(() => this.#again(), this.#mode.everyMs);
    }
    const isFull = most === 0 || this.#held.length > 0 || this.#to.writableNeedDrain;
    if (isFull) this.#from.pause();
    else this.#from.resume();
  }

  #again(): void {
    this.#timer = undefined;
    this.#move();
  }
}

export interface LineFault {
  readonly mode: Mode;
  /** Whether open connections are cut as it begins. */
  readonly cut: boolean;
  readonly milliseconds: number;
}

/** The same faults in the same order for a seed, without end; `longest` bounds how long one lasts. */
export function* lineFaults(seed: number, longest = 1_500): Generator<LineFault, never> {
  const random = randomStream(seed);
  const modes: readonly Mode[] = [
    { kind: 'pass' },
    { kind: 'refuse' },
    { kind: 'hang' },
    { kind: 'slow', bytes: 512, everyMs: 2 },
  ];
  for (;;) {
    const mode = modes[Math.floor(random.uniform() * modes.length)]!;
    // A fault that passes everything is a cut alone.
    const cut = random.uniform() < 0.5 || mode.kind === 'pass';
    yield { mode, cut, milliseconds: mode.kind === 'pass' ? 0 : Math.ceil(random.uniform() * longest) };
  }
}
