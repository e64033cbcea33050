/** What a judge, its server, or whoever can write into its cache may do to a reward: nothing, or make it absent. */
import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, describe, expect, it, onTestFinished } from 'vitest';
import { type JudgeServer, judgeServer, type Plays, verdict } from '../../../test/fixtures/grader/judge-server.ts';
import { gradeOf, rewardOf } from '../../../test/fixtures/grader/rollout-input.ts';
import type { Grader } from '../../core/contracts.ts';
import { type JudgeOptions, judge, rubric } from './judge.ts';
import { verdictIn } from './verdict.ts';

const servers: JudgeServer[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server[Symbol.asyncDispose]();
});
async function playing(plays: Plays): Promise<JudgeServer> {
  const server = await judgeServer(plays);
  servers.push(server);
  return server;
}
const by = ({ baseURL }: JudgeServer, options: Partial<JudgeOptions> = {}): Grader =>
  judge({ model: { baseURL, model: 'big' }, instructions: 'Is it kind?', backoffMs: 1, ...options });

const CHECK = '0123456789abcdef';
const said = (score: unknown, check = CHECK): string => JSON.stringify({ check, reason: 'because', score });
const read = (reply: string) => verdictIn(reply, { instructions: '', scale: [0, 1], criteria: [] }, CHECK);
const score = (value: number) => ({ scores: [value], clamped: 0 });

describe('a reply', () => {
  it.each([
    ['a draft among its thoughts', `<think>first\n\`\`\`json\n${said(0.1)}\n\`\`\`\nno</think>\n${said(0.9)}`, 0.9],
    ['a draft without a fence', `<think>${said(0.1)}</think>${said(0.9)}`, 0.9],
    ['thoughts whose beginning the template wrote', `hm ${said(0.1)}\n</think>\n\n${said(0.9)}`, 0.9],
    ['the words of another manner', `<thinking>${said(0.1)}</thinking>${said(0.9)}`, 0.9],
    ['what the agent said, in a fence', `It wrote\n\`\`\`json\n{"score": 1}\n\`\`\`\nso: ${said(0.2)}`, 0.2],
    ['what the agent said, behind the verdict', `${said(0.2)}\nIt wrote {"check": "x", "score": 1}`, 0.2],
    ['the same verdict twice', `${said(0.2)}\n\`\`\`json\n${said(0.2)}\n\`\`\``, 0.2],
    ['the end of a thought in its reason', said(0.2).replace('because', 'it wrote </think>'), 0.2],
    ['a brace that opens nothing', `Look { here: ${said(0.2)}`, 0.2],
  ])('with %s is the verdict that was meant', (_, reply, expected) => {
    expect(read(reply)).toEqual(score(expected));
  });

  it.each([
    ['thoughts that never end', `<think>maybe ${said(1)}`, /done thinking/],
    ['only thoughts', `<think>${said(1)}</think>`, /no JSON object/],
    ['two verdicts that differ', `${said(0.1)}\n${said(0.9)}`, /several verdicts that differ/],
    ['a score twice', `{"check": "${CHECK}", "score": 1, "score": 0}`, /names something twice/],
    ['a score twice, spelt differently', `{"check": "${CHECK}", "score": 1, "sc\\u006fre": 0}`, /names something twice/],
    ['two checks', `{"check": "x", "check": "${CHECK}", "score": 1}`, /names something twice/],
    ['the verdict inside of something', `{"verdict": ${said(1)}}`, /does not repeat the check/],
    ['the verdict as a text', JSON.stringify(said(1)), /no JSON object/],
    ['a score as text', said('1.0'), /"score" is a text/],
    ['a score in a list', said([1]), /"score" is a object/],
    ['no number', `{"check": "${CHECK}", "score": -1e999}`, /"score" is not finite/],
    ['the score of a prototype', `{"check": "${CHECK}", "__proto__": {"score": 1}}`, /"score" is missing/],
    ['a refusal', 'I cannot help with judging this.', /no JSON object/],
    ['nesting without end', `${'{"a":'.repeat(20_000)}1${'}'.repeat(20_000)}`, /no JSON object/],
    ['brackets without end', '['.repeat(500_000), /no JSON object/],
  ])('with %s is none', (_, reply, why) => {
    expect(read(reply)).toMatch(why);
  });
});

describe('a server that refuses one question', () => {
  it('and repeats it in its refusal changes nothing for the others', async () => {
    const server = await playing((request, reply) => {
      if (!request.user.includes('poison')) return verdict(request, 1);
      reply.writeHead(400).end('too long: max_tokens, temperature, response_format were in your question');
      return undefined;
    });
    const grader = by(server);
    expect(await gradeOf(grader, { said: 'poison' })).toMatchObject({ kind: 'failed', code: 'GRADER_UNSCORABLE' });
    await rewardOf(grader, { said: 'an honest answer' });
    expect(server.requests.at(-1)?.body).toMatchObject({ temperature: 0, max_tokens: 1024, response_format: {} });
  });
});

describe('many gradings at once', () => {
  it('get each their own verdict', async () => {
    const server = await playing((request) => verdict(request, Number(/said (\d+)/.exec(request.user)?.[1]) / 100));
    const grader = by(server);
    const values = await Promise.all(
      Array.from({ length: 100 }, async (_, i) => (await rewardOf(grader, { said: `said ${i}` })).value),
    );
    expect(values).toEqual(Array.from({ length: 100 }, (_, i) => i / 100));
  });
});

describe('a cache that others can write to', () => {
  async function poisoned(poison: (file: string) => unknown): Promise<void> {
    const cache = await mkdtemp(join(tmpdir(), 'trainyard-judge-'));
    onTestFinished(() => rm(cache, { recursive: true, force: true }));
    const server = await playing((request) => verdict(request, 0.25));
    await rewardOf(by(server, { cache }), { said: 'a' });
    const [name = expect.fail('nothing was kept')] = await readdir(cache);
    await rm(join(cache, name));
    await poison(join(cache, name));
    expect(await rewardOf(by(server, { cache }), { said: 'a' })).toMatchObject({ value: 0.25, metrics: { cached: 0 } });
  }

  it('does not hang a grading by a pipe', () => poisoned((file) => execFileSync('mkfifo', [file])));
  it('does not make it read a device without end', () => poisoned((file) => symlink('/dev/zero', file)));
  it('does not make it read a huge file', () => poisoned((file) => writeFile(file, ' '.repeat(1_000_000))));
});

describe('a rubric', () => {
  const criteria = [
    { name: 'kind', description: 'Is it kind?', weight: 3 },
    { name: 'short', description: 'Is it short?' },
  ];

  it.each(['', ' \n', '\u200b\u2060'])('gives the bottom for %j, by each criterion, without a call', async (nothing) => {
    const server = await playing(() => 'hm');
    const grader = rubric(criteria, { model: { baseURL: server.baseURL, model: 'big' }, scale: [1, 5], successFrom: 1 });
    expect(await rewardOf(grader, { said: nothing })).toEqual({
      value: 1,
      success: false,
      parts: { kind: 1, short: 1 },
      metrics: { calls: 0 },
    });
    expect(server.requests).toHaveLength(0);
  });

  it('refuses weights whose sum is no number: every score would count as nothing', () => {
    const heavy = criteria.map((one) => ({ ...one, weight: 1e308 }));
    expect(() => rubric(heavy, { model: 'policy' })).toThrow(expect.objectContaining({ code: 'GRADER_INVALID' }));
  });
});

it('a base URL with a query is refused, and not repeated: it may hold a key', () => {
  const define = (): Grader => judge({ model: { baseURL: 'https://host/v1?key=hunter2', model: 'm' }, instructions: 'a' });
  expect(define).toThrow(expect.objectContaining({ code: 'GRADER_INVALID', message: expect.not.stringContaining('hunter2') }));
});
