/**
 * Secrets planted wherever one can be, with servers that repeat them in their errors: keys of the policy, the judge and a server, and
 * passwords of databases. Afterwards they are looked for in all that was printed, written, stored and exported.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { jsonLines, ROOT, type scratch, start, useScratch } from '../cli/command.ts';
import { localServer } from '../fixtures/local-server.ts';
import { databaseFor, needsPostgres } from '../postgres/server.ts';
import { rows } from '../workers/site.ts';

const SECRETS = {
  policy: 'sk-policy-5b1f9c0d7e2a4483',
  judge: 'sk-judge-0c6e1d9b8a7f4352',
  admin: 'admin-token-77d0a1c39e5b4f68',
  tinker: 'tml-secret-2f8e6a1d0c9b4735',
  password: 'pw-Zx81kQ55vv0aTr',
};
const ENVIRONMENT = [
  `export OPENAI_API_KEY=${SECRETS.policy} JUDGE_KEY=${SECRETS.judge} TRAINYARD_TOKEN=${SECRETS.admin}`,
  `TINKER_API_KEY=${SECRETS.tinker} PGPASSWORD=${SECRETS.password}`,
].join(' ');

const entryFor = (baseURL: string): string => `
import OpenAI from 'openai';
import { defineWorkflow } from 'trainyard';
import { judge } from 'trainyard/graders';
export default defineWorkflow(async (ctx) => {
  const { baseURL, apiKey, name } = ctx.model();
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  const reply = await client.chat.completions.create({ model: name, messages: ctx.prompt as any });
  return reply.choices[0]!.message.content ?? '';
});
export const grader = judge({ model: { baseURL: '${baseURL}', model: 'judge', apiKeyEnv: 'JUDGE_KEY' }, instructions: 'Is it good?', tries: 1 });
`;

/** Answers every other call, and refuses the others with what it was sent. */
async function repeatingServer() {
  let calls = 0;
  const server = await localServer((request, reply) => {
    const answer = {
      id: 'a',
      object: 'chat.completion',
      created: 1,
      model: 'm',
      usage: { prompt_tokens: 1, completion_tokens: 1 },
    };
    const choices = [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'all right' } }];
    const isAnswered = calls++ % 2 === 0;
    const error = { message: `Incorrect API key provided: ${request.headers.authorization}`, type: 'invalid_request_error' };
    reply.writeHead(isAnswered ? 200 : 400, { 'content-type': 'application/json' });
    reply.end(JSON.stringify(isAnswered ? { ...answer, choices } : { error }));
  });
  return { ...server, baseURL: `${server.origin}/v1`, calls: () => calls };
}

const found = (text: string): string[] =>
  Object.entries(SECRETS).flatMap(([name, secret]) =>
    text.includes(secret) || text.includes(Buffer.from(secret).toString('hex')) ? [name] : [],
  );

async function everythingIn(url: string): Promise<string> {
  const sql = `SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname IN ('trainyard', 'trainyard_queue')`;
  const tables = await rows<{ name: string }>(sql, url);
  expect(tables.length).toBeGreaterThan(8);
  let all = '';
  for (const { name } of tables) all += JSON.stringify(await rows(`SELECT row_to_json(t) FROM ${name} t`, url));
  return all;
}

describe('secrets', needsPostgres, () => {
  const home: Pick<Awaited<ReturnType<typeof scratch>>, 'dir' | 'write'> = useScratch();
  let server: Awaited<ReturnType<typeof repeatingServer>>;
  let database: Awaited<ReturnType<typeof databaseFor>>;
  let entry: string;
  const printed: string[] = [];
  const at = (name: string): string => join(home.dir, name);
  const begin = (...args: readonly string[]) => {
    const started = start(args, ROOT, ENVIRONMENT);
    void started.ended.then(({ stdout, stderr }) => printed.push(stdout, stderr));
    return started;
  };
  const store = (): string => Object.assign(new URL(database.url), { password: SECRETS.password }).href;

  beforeAll(async () => {
    [server, database] = [await repeatingServer(), await databaseFor()];
    entry = await home.write('agent.ts', entryFor(server.baseURL));
    const tasks = Array.from({ length: 8 }, (_, i) => JSON.stringify({ id: `t${i}`, prompt: `Say ${i}`, answer: 'x' }));
    await home.write('tasks.jsonl', tasks.join('\n'));
  });
  afterAll(async () => {
    await server[Symbol.asyncDispose]();
    await database[Symbol.asyncDispose]();
  });

  it('are in no output, event, file, table or export of a measurement on workers whose servers repeat them', async () => {
    const worker = begin('worker', '--store', store(), '--json');
    const api = ['--engine', 'openai', '--base-url', server.baseURL, '--model', 'm', '--max-error-share', '1'];
    const run = ['--held-out', at('tasks.jsonl'), '--run', at('run'), '--report', at('r.json')];
    await begin('eval', entry, ...api, ...run, '--store', store(), '--workers', 'external', '--json').ended;
    worker.child.kill('SIGTERM');
    await worker.ended;
    expect(server.calls()).toBeGreaterThan(8);
    for (const args of [
      ['show', at('run'), '--store', store()],
      ['show', at('run'), '--store', store(), '--json'],
      ['export', at('run'), '--store', store(), '--format', 'jsonl', '--only', 'all', '--to', at('out.jsonl')],
      ['view', at('run'), '--store', store(), '--export', at('run.html')],
      ['eval', entry, ...api, '--print-config', '--store', store()],
    ]) {
      await begin(...args).ended;
    }
    const [shown] = printed.filter((text) => text.includes('Incorrect API key provided'));
    expect(shown, 'the servers’ errors are shown').toBeDefined();
    expect(found(await everythingIn(database.url))).toEqual([]);
  });

  it('are in no error about a database that cannot be used', async () => {
    const wrong = [
      'postgres://me:PW@127.0.0.1:1/none',
      'postgres://me:PW@:port/x',
      'postgres://me:PW@127.0.0.1',
      'mysql://me:PW@h/d',
    ];
    for (const url of wrong.map((one) => one.replace('PW', SECRETS.password))) {
      expect((await begin('eval', entry, '--run', at('never'), '--store', url).ended).code).not.toBe(0);
      if (!url.endsWith('/none')) expect((await begin('worker', '--store', url).ended).code).not.toBe(0);
    }
  });

  it('are in nothing that a server of the policy keeps or prints', async () => {
    const serving = begin('serve', '--run', at('served'), '--store', store(), '--json');
    await serving.prints('"type":"serving"');
    const { baseURL, apiKey } = jsonLines<{ baseURL: string; apiKey: string }>(serving.stdout())[0]!;
    const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
    const body = JSON.stringify({ model: 'policy', messages: [{ role: 'user', content: 'hello' }], max_tokens: 4 });
    expect((await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body })).status).toBe(200);
    const admin = { authorization: `Bearer ${SECRETS.admin}x`, 'content-type': 'application/json' };
    await fetch(new URL('/sessions', baseURL), { method: 'POST', headers: admin, body: '{}' });
    serving.child.kill('SIGTERM');
    await serving.ended;
  });

  it('are in none of the files and outputs of all this', () => {
    const files = readdirSync(home.dir, { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
    expect(files.length).toBeGreaterThan(8);
    for (const { parentPath, name } of files)
      expect([name, found(readFileSync(join(parentPath, name), 'latin1'))]).toEqual([name, []]);
    expect(printed.length).toBeGreaterThan(20);
    for (const text of printed) expect([text.slice(0, 200), found(text)]).toEqual([text.slice(0, 200), []]);
  });
});
