/** Files and other sources of tasks: what is read, and how what is none is told, without a word of an answer. */
import { execFileSync } from 'node:child_process';
import { open, rm, symlink, utimes, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { beforeAll, describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { refusal } from '../../test/fixtures/refusal.ts';
import { givenRows, type TaskSource } from './rows.ts';
import { readJsonl } from './task-file.ts';
import { readRows, readTasks } from './tasks.ts';

const dir = sharedFolder();

async function read(content: string | Uint8Array, name = 'tasks.jsonl') {
  await writeFile(join(dir, name), content);
  return await readTasks(join(dir, name));
}
const refuses = (given: Promise<unknown>, message: string | RegExp) =>
  expect(given).rejects.toMatchObject(refusal('DATASET_INVALID', message));

describe('a task file', () => {
  it('takes a prompt as text or as messages', async () => {
    const text = '{"id":"a","prompt":"hi","label":1}\r\n\r\n{"id":7,"prompt":[{"role":"user","content":"yo"}],"label":"x"}';
    expect(await read(`\uFEFF${text}`)).toEqual([
      { id: 'a', prompt: [{ role: 'user', content: 'hi' }], answer: 1 },
      { id: '7', prompt: [{ role: 'user', content: 'yo' }], answer: 'x' },
    ]);
  });

  it('takes system and user prompt; a system prompt of null or nothing is none', async () => {
    const rows = [
      { system_prompt: 's', user_prompt: 'u' },
      { system_prompt: null, user_prompt: 'v' },
      { system_prompt: '', user_prompt: 'w' },
    ];
    const tasks = await read(rows.map((row) => JSON.stringify(row)).join('\n'));
    const said = tasks.map(({ prompt }) => prompt.map(({ role, content }) => `${role} ${content}`));
    expect(said).toEqual([['system s', 'user u'], ['user v'], ['user w']]);
  });

  it('prefers answer to ground_truth to label, passes over nulls, and keeps keys that look like magic', async () => {
    const tasks = await read(
      [
        '{"prompt":"a","answer":1,"ground_truth":2,"label":3}',
        '{"prompt":"b","answer":null,"ground_truth":2,"label":3}',
        '{"prompt":"c","answer":null,"ground_truth":null,"label":0}',
        '{"prompt":"d","answer":null,"ground_truth":null,"label":null}',
        '{"prompt":"a: {\\"b\\": 1}","answer":{"__proto__":7,"a:b":{"c":":"}},"ground_truth":null,"label":null}',
      ].join('\n'),
    );
    const answers = tasks.map(({ answer }) => JSON.stringify(answer));
    expect(answers).toEqual(['1', '2', '0', 'null', '{"__proto__":7,"a:b":{"c":":"}}']);
  });

  it.each([
    ['{"prompt":"a"}\n{oops', 'line 2 is not valid JSON'],
    ['{"answer":"SECRET","prompt":"x"', 'line 1 is not valid JSON'],
    ['{"prompt":"a","answer":NaN}', 'line 1 is not valid JSON, which has no NaN'],
    ['{"prompt":"a"}\n{"prompt":"b","ans', 'was the file cut off?'],
    ['{"prompt":"a"}\n\uFEFF{"prompt":"b"}', 'line 2 is not valid JSON'],
    ['{"prompt":"a"}{"prompt":"b"}', 'line 1 is not valid JSON'],
    ['{"answer":1}', 'found neither'],
    ['{"prompt":"a","user_prompt":"b"}', 'found both'],
    ['{"prompt":""}', 'line 1: prompt'],
    ['{"id":"x","prompt":"a"}\n{"id":"x","prompt":"b"}', 'already used on line 1'],
    ['[1]', 'tasks.jsonl is a JSON list, expected one JSON object a line'],
    ['\n[\n  {"prompt":"a"},\n  {"prompt":"b"}\n]\n', 'tasks.jsonl is a JSON list, expected one JSON object a line'],
    ['{\n  "prompt": "a"\n}\n', 'goes on over more lines, expected one JSON object a line'],
    ['\uFEFF\n  \n\r\n', 'holds no task'],
    ['{"id":"\\ud800","prompt":"a"}', 'surrogate'],
    ['{"id":"\\u001b[31m","prompt":"a"}', 'printable'],
    ['{"prompt":[{"role":"user","content":"q","contnt":"x"}]}', 'contnt'],
    ['{"prompt":[{"role":"tool","content":"42"}]}', 'prompt.0.role'],
    [`{"prompt":"a","metadata":${'['.repeat(300)}${']'.repeat(300)}}`, 'nested deeper'],
    ['{"prompt":"a","answer":9007199254740993}', 'answer: expected whole numbers'],
    ['{"prompt":"a","answer":1e999}\n', 'answer: expected a finite number'],
    ['{"prompt":"a","system_prompt":3}', 'system_prompt: expected text, found a number'],
    ['{"prompt":"a","metadata":{"x":[{"SECRET":1,"SECRET":2}]}}\n', 'line 1: an object has one key twice'],
    [Buffer.from('{"prompt":"caf\xe9"}', 'latin1'), 'line 1 is not UTF-8'],
  ])('refuses %j', async (text, message) => {
    const thrown = await read(text).catch((error: Error) => error);
    expect(thrown).toMatchObject(refusal('DATASET_INVALID', message));
    expect(String(thrown)).not.toContain('SECRET');
  });

  it.each([
    ['packed.jsonl.gz', gzipSync('{}'), 'packed by gzip'],
    ['packed.csv', zstdCompressSync('{}'), 'packed by zstd'],
    ['sheet.csv', Buffer.from('PK\u0003\u0004rest'), 'a ZIP archive or a spreadsheet'],
    ['wide.csv', Buffer.from('\ufeff{}', 'utf16le'), 'UTF-16'],
    ['semicolons.csv', 'prompt;answer\na;1\n', 'expected columns separated by commas, found ";"'],
    ['tabs.csv', 'prompt\tanswer\na\t1\n', 'expected columns separated by commas, found tabs'],
    ['tabs.tsv', 'prompt\tanswer\na\t1\n', 'separated by tabs, expected commas'],
    ['header.csv', 'prompt,answer\n', 'holds no task'],
    ['magic.csv', '__proto__,prompt\n1,a\n', 'unknown column __proto__'],
  ])('is not %s', async (name, content, message) => {
    await refuses(read(content, name), message);
  });

  it('with a line that does not end is refused before it is read to its end', async () => {
    let given = 0;
    const endless = (async function* () {
      for (;;) {
        given += 2 ** 20;
        yield Buffer.alloc(2 ** 20, 0x20);
      }
    })();
    await refuses(readJsonl(endless, 'x.jsonl').next(), 'x.jsonl line 1 is longer than 16 MiB');
    expect(given).toBeLessThan(20 * 2 ** 20);
  });

  it('is read the same however its bytes are cut', async () => {
    const bytes = Buffer.from('{"prompt":"caf\u00e9 😀","answer":"x"}\r\n\n{"prompt":"b","answer":"y"}');
    for (const size of [1, 2, 3, 7, 1000]) {
      const pieces = (async function* () {
        for (let start = 0; start < bytes.length; start += size) yield bytes.subarray(start, start + size);
      })();
      expect(await Array.fromAsync(readJsonl(pieces, 'x.jsonl'))).toEqual([
        { kind: 'row', place: 'line 1', row: { prompt: 'caf\u00e9 😀', answer: 'x' } },
        { kind: 'row', place: 'line 3', row: { prompt: 'b', answer: 'y' } },
      ]);
    }
  });
});

describe('a path', () => {
  beforeAll(async () => {
    await writeFile(join(dir, 'good.jsonl'), '{"prompt":"a"}\n');
    await symlink(join(dir, 'good.jsonl'), join(dir, 'link.jsonl'));
    await symlink('/dev/zero', join(dir, 'zero.jsonl'));
    await symlink(join(dir, 'loop.jsonl'), join(dir, 'loop.jsonl'));
    execFileSync('mkfifo', [join(dir, 'pipe.parquet')]);
    await using large = await open(join(dir, 'large.jsonl'), 'w');
    await large.truncate(6 * 2 ** 30);
  });

  it('may lead through a link', async () => {
    expect(await readTasks(join(dir, 'link.jsonl'))).toHaveLength(1);
  });

  it.each([
    ['.', 'DATASET_INVALID', 'found a folder', 'name one file in it'],
    ['pipe.parquet', 'DATASET_INVALID', 'found a pipe', 'to a file'],
    ['zero.jsonl', 'DATASET_INVALID', 'found a device', 'to a file'],
    ['large.jsonl', 'DATASET_INVALID', '6.0 GiB, expected at most 5', 'split it'],
    ['none.jsonl', 'FILE_NOT_FOUND', 'none.jsonl', 'put the tasks beside the entry'],
    ['loop.jsonl', 'FILE_NOT_FOUND', 'ELOOP', 'leads back to itself'],
    ['good.jsonl/x', 'FILE_NOT_FOUND', 'ENOTDIR', 'put the tasks beside the entry'],
  ])('%s is refused', async (name, code, message, hint) => {
    await expect(readTasks(join(dir, name))).rejects.toMatchObject(refusal(code, message, hint));
  });

  // Root may read every file.
  it.skipIf(process.getuid?.() === 0)('that may not be read is named, and what to allow', async () => {
    await writeFile(join(dir, 'locked.jsonl'), '{"prompt":"a"}', { mode: 0 });
    const locked = readTasks(join(dir, 'locked.jsonl'));
    await expect(locked).rejects.toMatchObject(refusal('FILE_NOT_FOUND', 'EACCES', 'allow this user'));
  });

  it('is no URL', async () => {
    await refuses(readTasks('https://example.com/train.jsonl'), 'found the URL');
  });
});

describe('a source', () => {
  it.each([5, null, {}, () => []])('that is none: %s', async (source) => {
    await refuses(readTasks(source as unknown as TaskSource), 'expected the path of a file, a list');
  });

  it('that throws says so', async () => {
    const failing = (async function* () {
      yield { prompt: 'a' };
      throw new Error('the disk is gone');
    })();
    await refuses(readTasks(failing), 'threw after 1 rows: the disk is gone');
  });

  it('that does not answer is given up, one that is left early is closed', async () => {
    const silent = { [Symbol.asyncIterator]: () => ({ next: () => new Promise<never>(() => {}) }) };
    await refuses(givenRows(silent, 20).next(), 'gave no row for 0.02 s');
    let isClosed = false;
    const bad = (async function* () {
      try {
        for (;;) yield { prompt: '' };
      } finally {
        isClosed = true;
      }
    })();
    await refuses(readTasks(bad), 'showing first 5');
    expect(isClosed).toBe(true);
  });

  it('of values is copied: changing them later changes no task', async () => {
    const row = { prompt: 'a', answer: { list: [1] } };
    const reusing = (function* () {
      for (let i = 0; i < 3; i++) {
        row.answer.list[0] = i;
        yield row;
      }
    })();
    const tasks = await readTasks(reusing);
    row.answer.list[0] = 99;
    expect(tasks.map(({ answer }) => answer)).toEqual([{ list: [0] }, { list: [1] }, { list: [2] }]);
  });

  it.each(['grows', 'changes', 'is replaced'])('in a file that %s while it is read is refused', async (how) => {
    const path = join(dir, 'changing.jsonl');
    const line = '{"prompt":"a question"}\n';
    await writeFile(path, line.repeat(20_000));
    const rows = readRows(path);
    await rows.next();
    if (how === 'is replaced') await rm(path);
    if (how === 'changes') await writeFile(path, line.repeat(20_000).replaceAll('a', 'b'));
    else await writeFile(path, line.repeat(20_001));
    await utimes(path, 1, 1);
    await refuses(Array.fromAsync(rows), 'was changed while it was read');
  });
});
