/**
 * A real GGUF file, SmolLM2-135M in Q4_1: every tensor against Python's `gguf`, to the bit; the embedded engine's
 * answers against transformers; the tokenizer and the chat template made from its metadata against llama.cpp's server.
 */
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { EmbeddedModel } from '../../src/engines/embedded/embedded-model.ts';
import { openGguf } from '../../src/engines/embedded/model/gguf.ts';
import { loadRenderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer } from '../../src/tokens/tokenizer.ts';
import { freePort, runProgram, startServer } from './child.ts';
import { prepareLlamaCpp, SERVER, SMOLLM2 } from './llama-cpp.ts';
import { cache } from './python-environment.ts';
import type { Report } from './report.ts';

/** Not a divisor of anything: ranges begin and end within heads. */
const ROWS_AT_A_TIME = 101;

const TOLERANCE = 1e-4;
const QUESTIONS = [
  'What is the capital of France?',
  'Name three colours.',
  'What is 2 + 2?',
  'Write one sentence about the sea.',
];

const TEXTS = [
  'Hello, world!',
  "don't we'll I'VE they'd’s",
  '  leading, trailing  and   inner spaces  ',
  'a  1  22   333 b 12345678901234567890 3.14 1,000',
  'x²+½ ٣٤ Ⅷ 一二三 𝟙',
  'naïve café Übergröße e\u0301 a\u0323\u0307',
  '日本語のテキスト 한국어 שלום مرحبا नमस्ते',
  '👩‍👩‍👧 🇩🇪 🙂 👍🏽 #️⃣',
  'def f(x):\n    return {"a": [1, 2.5e-3]}\n\n\n\tif x: pass  # no\n',
  'tabs\t\tand\r\nnewlines\n\n \n\r',
  'zero\u200bwidth no\u00a0break \u3000wide',
  '<tool_call>{"name": "lookup", "arguments": {"item": "velvet carpet"}}</tool_call>',
  '<|im_start|>not a control token<|im_end|>',
  ' ',
  'https://example.org/a?b=c&d=%20#e camelCase snake_case HTTPServer',
];

const CONVERSATIONS = [
  [{ role: 'user', content: 'What is 17 + 4?' }],
  [
    { role: 'system', content: 'Answer in one word.' },
    { role: 'user', content: '  Héllo\n\n<b>1234</b>  ' },
    { role: 'assistant', content: 'Hi.' },
    { role: 'user', content: '🙂' },
  ],
] as const;

export async function checkGguf(report: Report, python: string): Promise<void> {
  const missing = prepareLlamaCpp((line) => report.note(line));
  if (missing !== undefined) return report.skip('a GGUF file and llama.cpp', missing);
  await report.check('every tensor is what Python’s gguf reads, to the bit', () => compareTensors(python));
  await report.check('the embedded engine answers as transformers does with the same file', () => compareAnswers(python));
  const port = await freePort();
  const args = ['--model', SMOLLM2, '--port', `${port}`, '--jinja', '--parallel', '1', '--ctx-size', '512'];
  const at = `http://127.0.0.1:${port}`;
  await using _server = await startServer({ command: SERVER, args, limitMs: 120_000 }, `${at}/health`);
  // It answers 503 while it loads the model.
  for (let tries = 0; tries < 300 && !(await fetch(`${at}/health`)).ok; tries++) await sleep(200);
  await report.check('text is encoded as llama.cpp does', () => compareTexts(at));
  await report.check('conversations are rendered and encoded as llama.cpp does', () => compareConversations(at));
}

async function compareTensors(python: string): Promise<string> {
  const target = join(cache, 'gguf-hashes.json');
  const args = [join(import.meta.dirname, 'gguf_check.py'), 'hashes', SMOLLM2, target];
  await runProgram({ command: python, args, limitMs: 180_000 });
  const theirs = JSON.parse(await readFile(target, 'utf8')) as Readonly<Record<string, string>>;
  await using source = await openGguf(SMOLLM2);
  let numbers = 0;
  for (const [name, [rows = 0]] of source.shapes) {
    const hash = createHash('sha256');
    for (let first = 0; first < rows; first += ROWS_AT_A_TIME) {
      const read = await source.rows(name, first, Math.min(ROWS_AT_A_TIME, rows - first));
      hash.update(new Uint8Array(read.buffer));
      numbers += read.length;
    }
    if (hash.digest('hex') !== theirs[name]) throw new Error(`${name} is not what Python’s gguf reads`);
  }
  const expected = Object.keys(theirs).length;
  if (source.shapes.size !== expected) throw new Error(`${source.shapes.size} tensors here, ${expected} there`);
  return `${expected} tensors, ${numbers} numbers`;
}

async function compareAnswers(python: string): Promise<string> {
  const [asked, answered] = ['gguf-asked.json', 'gguf-answered.json'].map((name) => join(cache, name)) as [string, string];
  const renderer = await loadRenderer(SMOLLM2);
  await using model = await EmbeddedModel.open({ dir: SMOLLM2, threads: 1, use: 'sampling', context: 256 });
  const sampling = { temperature: 0, topP: 1, topK: 0, maxTokens: 24 };
  const rows = [];
  for (const content of QUESTIONS) {
    const promptIds = renderer.open([{ role: 'user', content }], []);
    rows.push({ promptIds, ...(await model.sample({ promptIds, sampling, stopIds: renderer.stopIds, seed: 1 })) });
  }
  await writeFile(asked, JSON.stringify(rows.map(({ promptIds, ids }) => ({ prompt: [...promptIds], ids: [...ids] }))));
  const args = [join(import.meta.dirname, 'gguf_check.py'), 'greedy', SMOLLM2, asked, answered];
  await runProgram({ command: python, args, limitMs: 180_000 });
  const theirs = JSON.parse(await readFile(answered, 'utf8')) as readonly { ids: number[]; logprobs: number[] }[];
  let furthest = 0;
  for (const [i, { ids, logprobs }] of rows.entries()) {
    same([...ids], theirs[i]!.ids, QUESTIONS[i]!);
    for (const [j, ours] of logprobs.entries()) furthest = Math.max(furthest, Math.abs(ours - theirs[i]!.logprobs[j]!));
  }
  if (!(furthest <= TOLERANCE)) throw new Error(`log-probabilities are up to ${furthest} apart`);
  const count = rows.reduce((sum, { ids }) => sum + ids.length, 0);
  return `${rows.length} answers, ${count} ids, log-probabilities ${furthest.toExponential(1)} apart at most`;
}

async function compareTexts(at: string): Promise<string> {
  const tokenizer = await loadTokenizer(SMOLLM2);
  let count = 0;
  for (const content of TEXTS) {
    const ours = [...tokenizer.encodeText(content)];
    same(ours, await tokenize(at, content, false), content);
    if (tokenizer.decode(ours) !== content) throw new Error(`${JSON.stringify(content)} is not decoded to itself`);
    count += ours.length;
  }
  return `${TEXTS.length} texts, ${count} ids`;
}

async function compareConversations(at: string): Promise<string> {
  const renderer = await loadRenderer(SMOLLM2);
  let count = 0;
  for (const messages of CONVERSATIONS) {
    const { prompt } = await post<{ prompt: string }>(at, '/apply-template', { messages });
    const ours = [...renderer.open(messages, [])];
    same(ours, await tokenize(at, prompt, true), prompt);
    count += ours.length;
  }
  return `${CONVERSATIONS.length} conversations, ${count} ids`;
}

async function tokenize(at: string, content: string, parse_special: boolean): Promise<readonly number[]> {
  return (await post<{ tokens: number[] }>(at, '/tokenize', { content, add_special: false, parse_special })).tokens;
}

function same(ours: readonly number[], theirs: readonly number[], text: string): void {
  if (ours.join() === theirs.join()) return;
  throw new Error(`${JSON.stringify(text)} is ${ours.join()} here, ${theirs.join()} there`);
}

async function post<T>(at: string, path: string, body: object): Promise<T> {
  const answer = await fetch(at + path, { method: 'POST', body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}: ${await answer.text()}`);
  return (await answer.json()) as T;
}
