import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
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
  it('takes a prompt as text, as messages, or as system and user prompt', async () => {
    const tasks = await read(
      [
        '{"id":"a","prompt":"hi","answer":1}',
        '',
        '{"prompt":[{"role":"user","content":"yo"}],"label":"x"}',
        '{"id":7,"system_prompt":"s","user_prompt":"u","ground_truth":[1],"metadata":{"k":true}}',
      ].join('\r\n'),
    );
    expect(tasks).toEqual([
      { id: 'a', prompt: [{ role: 'user', content: 'hi' }], answer: 1 },
      { id: 'line-3', prompt: [{ role: 'user', content: 'yo' }], answer: 'x' },
      {
        id: '7',
        prompt: [
          { role: 'system', content: 's' },
          { role: 'user', content: 'u' },
        ],
        answer: [1],
        metadata: { k: true },
      },
    ]);
  });

  it.each([
    ['{"prompt":"a"}\n{oops', 'line 2 is not valid JSON'],
    ['{"answer":1}', 'found neither'],
    ['{"prompt":"a","user_prompt":"b"}', 'found both'],
    ['{"prompt":""}', 'line 1: prompt'],
    ['{"prompt":"a","anwser":3}', 'anwser'],
    ['{"id":"x","prompt":"a"}\n{"id":"x","prompt":"b"}', 'already used on line 1'],
    ['[1]', 'line 1'],
    ['', 'holds no task'],
    ['{"prompt":"a","answer":1,"label":5}', 'found answer and label'],
    ['{"id":"\\ud800","prompt":"a"}', 'printable'],
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

  it('that is missing is named', async () => {
    await expect(readTasks(join(dir, 'none.jsonl'))).rejects.toMatchObject({
      code: 'FILE_NOT_FOUND',
      message: expect.stringContaining('none.jsonl'),
    });
  });
});
