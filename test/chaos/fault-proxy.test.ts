import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { type FaultProxy, faultProxy, lineFaults, type Mode } from './fault-proxy.ts';

let [server, proxy]: [Server, FaultProxy] = [] as never;
beforeEach(async () => {
  server = createServer((socket) => void socket.on('error', () => {}).pipe(socket)).listen(0, '127.0.0.1');
  await once(server, 'listening');
  proxy = await faultProxy((server.address() as AddressInfo).port);
});
afterEach(async () => {
  await proxy[Symbol.asyncDispose]();
  server.close();
});

/** A connection that keeps what it was told, and how it ended. */
function talk() {
  const socket: Socket = connect({ port: proxy.port, host: '127.0.0.1' });
  let heard = '';
  socket.setEncoding('utf8').on('data', (text: string) => {
    heard += text;
  });
  const ended = new Promise<string>((resolve) => {
    socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? 'error')).on('close', () => resolve('closed'));
  });
  const hears = async (text: string): Promise<void> => {
    while (!heard.includes(text)) await sleep(1);
  };
  return { socket, ended, hears, heard: () => heard };
}

it('passes everything in order in both directions, and both ends', async () => {
  const { socket, ended, heard } = talk();
  const text = 'line '.repeat(100_000);
  socket.end(text);
  expect(await ended).toBe('closed');
  expect(heard()).toBe(text);
});

it('refuses new connections and leaves the open ones', async () => {
  const open = talk();
  open.socket.write('one');
  await open.hears('one');
  proxy.set({ kind: 'refuse' });
  expect(await talk().ended).toBe('ECONNRESET');
  open.socket.write('two');
  await open.hears('onetwo');
  open.socket.destroy();
});

it('cuts open connections in the middle of a stream, and new ones work', async () => {
  const { socket, ended, hears } = talk();
  socket.write('begin');
  await hears('begin');
  proxy.cut();
  expect(await ended).toBe('ECONNRESET');
  expect(proxy.open).toBe(0);
  const next = talk();
  next.socket.write('again');
  await next.hears('again');
  next.socket.destroy();
});

it('hangs, also new connections, and goes on where it stopped', async () => {
  const [open, later] = [talk(), talk()];
  open.socket.write('one');
  await open.hears('one');
  proxy.set({ kind: 'hang' });
  const during = talk();
  for (const { socket } of [open, later, during]) socket.write('two');
  await sleep(30);
  expect([open.heard(), later.heard(), during.heard()]).toEqual(['one', '', '']);
  proxy.set({ kind: 'pass' });
  await Promise.all([open.hears('onetwo'), later.hears('two'), during.hears('two')]);
  for (const { socket } of [open, later, during]) socket.destroy();
});

it('is slow by so many bytes per interval', async () => {
  proxy.set({ kind: 'slow', bytes: 10, everyMs: 5 });
  const { socket, hears, heard } = talk();
  const startedAt = performance.now();
  socket.write('0123456789'.repeat(8));
  await hears('0123456789'.repeat(8));
  expect(performance.now() - startedAt).toBeGreaterThan(5 * 6);
  expect(heard()).toHaveLength(80);
  socket.destroy();
});

it('passes what it passes unchanged, whatever the modes in between', async () => {
  const modes: readonly Mode[] = [
    { kind: 'pass' },
    { kind: 'hang' },
    { kind: 'refuse' },
    { kind: 'slow', bytes: 100, everyMs: 1 },
  ];
  await fc.assert(
    fc.asyncProperty(fc.array(fc.constantFrom(...modes), { maxLength: 6 }), fc.nat(5_000), async (sequence, length) => {
      proxy.set({ kind: 'pass' });
      const { socket, ended, heard } = talk();
      while (proxy.open === 0) await sleep(1);
      const text = Array.from({ length }, (_, i) => i % 10).join('');
      socket.end(text);
      for (const mode of sequence) {
        proxy.set(mode);
        await sleep(1);
      }
      proxy.set({ kind: 'pass' });
      expect(await ended).toBe('closed');
      expect(heard()).toBe(text);
      while (proxy.open > 0) await sleep(1);
    }),
    { numRuns: 25 },
  );
});

it('draws the same faults for a seed', () => {
  const draw = (seed: number) => lineFaults(seed).take(40).toArray();
  expect(draw(3)).toEqual(draw(3));
  expect(draw(3)).not.toEqual(draw(4));
  expect(new Set(draw(3).map(({ mode }) => mode.kind))).toEqual(new Set(['pass', 'refuse', 'hang', 'slow']));
});
