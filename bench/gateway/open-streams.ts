/**
 * Thousands of streams open at once through one gateway process: how many fail, and what one costs in memory.
 *
 * The upstream gives each of them one token a second and lets go when all are open, so all of them are. The gateway is a fresh
 * process: memory that earlier work left behind would hide what streams need. Resident memory is taken before the first stream is
 * asked for, sessions included, and at its highest after that.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Connection } from './connection.ts';
import type { Door } from './served.ts';
import { type Server, startChild } from './servers.ts';

const STREAMS = 4000;
/** Opened at the same time; the rest waits, or the listen queue would overflow. */
const OPENING = 100;
/** How long all of them stay open. */
const HELD_MS = 4000;
const PATIENCE_MS = 120_000;
const MB = 1024 * 1024;

export interface OpenStreams {
  /** Open at the same time. */
  readonly streams: number;
  readonly streamErrors: number;
  readonly mbPer1000Streams: number;
}

export async function openStreams(upstream: Server, body: Buffer): Promise<OpenStreams> {
  using gateway = await startChild('served', upstream.port, '/trickle', STREAMS);
  const doors = await gateway.open(STREAMS);
  const before = await gateway.order<number>({ kind: 'memory' });
  const count = { begun: 0, ended: 0, failed: 0 };
  let ready = Promise.withResolvers<void>();
  const one = async (door: Door): Promise<void> => {
    const connection = new Connection(gateway.port);
    try {
      const first = Promise.withResolvers<void>();
      const answered = connection.ask(headOf(door), body, first.resolve);
      await Promise.race([first.promise, answered]);
      count.begun++;
      ready.resolve();
      const { status, raw } = await answered;
      if (status !== 200 || !raw.includes('data: [DONE]')) count.failed++;
    } catch {
      count.failed++;
    } finally {
      count.ended++;
      ready.resolve();
      connection.close();
    }
  };
  const all: Promise<void>[] = [];
  for (const door of doors) {
    all.push(one(door));
    while (all.length - count.begun - count.failed >= OPENING) {
      ready = Promise.withResolvers();
      await ready.promise;
    }
  }
  const patience = Date.now() + PATIENCE_MS;
  while (count.begun + count.failed < STREAMS && Date.now() < patience) await sleep(50);
  const streams = count.begun - count.ended;
  let highest = 0;
  for (const until = Date.now() + HELD_MS; Date.now() < until; await sleep(250)) {
    highest = Math.max(highest, await gateway.order<number>({ kind: 'memory' }));
  }
  await upstream.order({ kind: 'let go' });
  await Promise.race([Promise.all(all), sleep(PATIENCE_MS)]);
  highest = Math.max(highest, await gateway.order<number>({ kind: 'memory' }));
  const recorded = await gateway.order<number>({ kind: 'seal' });
  const unrecorded = STREAMS - count.failed - recorded;
  return {
    streams,
    streamErrors: count.failed + Math.max(0, unrecorded) + (STREAMS - count.ended),
    mbPer1000Streams: (highest - before) / MB / (STREAMS / 1000),
  };
}

const headOf = ({ path, authorization }: Door): string =>
  `POST ${path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: ${authorization}\r\n`;
