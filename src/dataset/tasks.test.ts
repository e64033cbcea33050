import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { readJsonl } from './task-file.ts';
import { readTasks } from './tasks.ts';

let dir = '';
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'tasks-'));
});
afterEach(() => rm(dir, { recursive: true }));

async function read(text: string) {
  const file = join(dir, 'tasks.jsonl');
  await writeFile(file, text);
  return await readTasks(file);
}

describe('a task file', () => {
  it('takes a prompt as text or as messages', async () => {
    const text = [
      '{"id":"a","prompt":"hi","label":1}',
      '',
      '{"id":7,"prompt":[{"role":"user","content":"yo"}],"label":"x"}',
    ].join('\r\n');
    expect(await read(`\uFEFF${text}`)).toEqual([
      { id: 'a', prompt: [{ role: 'user', content: 'hi' }], answer: 1 },
      { id: '7', prompt: [{ role: 'user', content: 'yo' }], answer: 'x' },
    ]);
  });

  it('takes system and user prompt; a system prompt of null or nothing is none', async () => {
    const rows = [
      { system_prompt: 's', user_prompt: 'u', ground_truth: [1], metadata: { k: true } },
      { system_prompt: null, user_prompt: 'v', ground_truth: [2], metadata: { k: false } },
      { system_prompt: '', user_prompt: 'w', ground_truth: [3], metadata: { k: null } },
    ];
    const tasks = await read(rows.map((row) => JSON.stringify(row)).join('\n'));
    expect(
      tasks.map(({ prompt, answer, metadata }) => [prompt.map(({ role, content }) => `${role} ${content}`), answer, metadata]),
    ).toEqual([
      [['system s', 'user u'], [1], { k: true }],
      [['user v'], [2], { k: false }],
      [['user w'], [3], { k: null }],
    ]);
  });

  it('prefers answer to ground_truth to label, and passes over nulls', async () => {
    const tasks = await read(
      [
        '{"prompt":"a","answer":1,"ground_truth":2,"label":3}',
        '{"prompt":"b","answer":null,"ground_truth":2,"label":3}',
        '{"prompt":"c","answer":null,"ground_truth":null,"label":0}',
        '{"prompt":"d","answer":null,"ground_truth":null,"label":null}',
      ].join('\n'),
    );
    expect(tasks.map(({ answer }) => answer)).toEqual([1, 2, 0, null]);
  });

  it.each([
    ['{"prompt":"a"}\n{oops', 'line 2 is not valid JSON'],
    ['{"answer":1}', 'found neither'],
    ['{"prompt":"a","user_prompt":"b"}', 'found both'],
    ['{"prompt":""}', 'line 1: prompt'],
    ['{"prompt":"a","anwser":3}', 'anwser'],
    ['{"id":"x","prompt":"a"}\n{"id":"x","prompt":"b"}', 'already used on line 1'],
    ['[1]', 'tasks.jsonl is a JSON list, expected one JSON object a line'],
    ['\n[\n  {"prompt":"a"},\n  {"prompt":"b"}\n]\n', 'tasks.jsonl is a JSON list, expected one JSON object a line'],
    ['{\n  "prompt": "a"\n}\n', 'goes on over more lines, expected one JSON object a line'],
    ['', 'holds no task'],
    ['{"id":"\\ud800","prompt":"a"}', 'surrogate'],
    ['{"id":"\\u001b[31m","prompt":"a"}', 'printable'],
    ['{"prompt":[{"role":"user","content":"q","contnt":"x"}]}', 'contnt'],
    ['{"prompt":[{"role":"tool","content":"42"}]}', 'prompt.0.role'],
    [`{"prompt":"a","metadata":${'['.repeat(300)}${']'.repeat(300)}}`, 'nested deeper'],
    ['{"prompt":[{"role":"robot","content":"x"}]}', 'prompt'],
  ])('refuses %j', async (text, message) => {
    await expect(read(text)).rejects.toMatchObject({ code: 'DATASET_INVALID', message: expect.stringContaining(message) });
  });

  it('keeps an answer of null, and keys that look like magic', async () => {
    const [first, second] = await read('{"prompt":"a","answer":null}\n{"prompt":"b","answer":{"__proto__":7}}');
    expect(first).toHaveProperty('answer', null);
    expect(JSON.stringify(second?.answer)).toBe('{"__proto__":7}');
  });

  it('that is not JSON is reported without its text, which may hold an answer', async () => {
    const error = await read('{"answer":"SECRET42","prompt":"x"').catch((thrown: Error) => thrown);
    expect(String(error)).toContain('line 1 is not valid JSON');
    expect(String(error)).not.toContain('SECRET42');
  });

  it('that is not UTF-8 is refused', async () => {
    const file = join(dir, 'latin.jsonl');
    await writeFile(file, Buffer.from('{"prompt":"caf\xe9"}', 'latin1'));
    await expect(readTasks(file)).rejects.toMatchObject({ code: 'DATASET_INVALID', message: expect.stringContaining('UTF-8') });
  });

  it.each([
    ['{"prompt":"a","answer":NaN}', 'line 1 is not valid JSON, which has no NaN'],
    ['{"prompt":"a"}\n{"prompt":"b","ans', 'was the file cut off?'],
    ['\n  \n\r\n', 'holds no task'],
    ['\uFEFF', 'holds no task'],
    ['{"prompt":"a"}\n\uFEFF{"prompt":"b"}', 'line 2 is not valid JSON'],
    ['{"prompt":"a"}{"prompt":"b"}', 'line 1 is not valid JSON'],
    ['{"prompt":"a","answer":9007199254740993}', 'answer: expected whole numbers'],
    ['{"prompt":"a","metadata":{"n":9223372036854775808}}', 'metadata.n: expected whole numbers'],
    ['{"prompt":"a","system_prompt":3}', 'system_prompt: expected text, found a number'],
  ])('refuses %j, too', async (text, message) => {
    await expect(read(text)).rejects.toMatchObject({ code: 'DATASET_INVALID', message: expect.stringContaining(message) });
  });

  it('with a line that does not end is refused before it is read to its end', async () => {
    let given = 0;
    const endless = (async function* () {
      for (;;) {
        given += 2 ** 20;
        yield Buffer.alloc(2 ** 20, 0x20);
      }
    })();
    await expect(readJsonl({ path: 'x.jsonl', chunks: () => endless }).next()).rejects.toMatchObject({
      message: expect.stringContaining('x.jsonl line 1 is longer than 16 MiB'),
    });
    expect(given).toBeLessThan(20 * 2 ** 20);
  });

  it('is read the same however its bytes are cut', async () => {
    const bytes = Buffer.from('{"prompt":"caf\u00e9 😀","answer":"x"}\r\n\n{"prompt":"b","answer":"y"}');
    for (const size of [1, 2, 3, 7, 1000]) {
      const pieces = (async function* () {
        for (let start = 0; start < bytes.length; start += size) yield bytes.subarray(start, start + size);
      })();
      const rows = [];
      for await (const row of readJsonl({ path: 'x.jsonl', chunks: () => pieces })) rows.push(row);
      expect(rows).toEqual([
        { kind: 'row', place: 'line 1', row: { prompt: 'caf\u00e9 😀', answer: 'x' } },
        { kind: 'row', place: 'line 3', row: { prompt: 'b', answer: 'y' } },
      ]);
    }
  });

  it('that is missing is named', async () => {
    await expect(readTasks(join(dir, 'none.jsonl'))).rejects.toMatchObject({
      code: 'FILE_NOT_FOUND',
      message: expect.stringContaining('none.jsonl'),
    });
  });
});
