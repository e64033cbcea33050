import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { openSqliteStore } from '../store/sqlite.ts';
import { type Served, serve } from './serve.ts';

const model = new URL('../../models/base', import.meta.url).pathname;

async function ask({ baseURL, apiKey }: Served, content: string): Promise<void> {
  await fetch(`${baseURL}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' },
    body: JSON.stringify({ messages: [{ role: 'user', content }], max_tokens: 2 }),
  });
}

it('two that serve into one directory and end at the same moment both keep what they captured', { timeout: 60_000 }, async () => {
  const run = await mkdtemp(join(tmpdir(), 'serve-'));
  const settings = { model, host: '127.0.0.1', port: 0, token: undefined, run, temperature: 1, threads: 1, seed: 1 };
  const both = await Promise.all([serve(settings, () => undefined), serve(settings, () => undefined)]);
  await ask(both[0]!, 'one');
  await ask(both[1]!, 'two');
  await Promise.all(both.map((served) => served[Symbol.asyncDispose]()));
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const kept = await Promise.all(['local', 'local-2'].map((name) => store.read(name)));
  expect(kept.map((one) => one?.turns[0]?.request.messages[0]?.content).toSorted()).toEqual(['one', 'two']);
  await rm(run, { recursive: true });
});
