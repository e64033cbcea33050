/** Models behind an API, measured: our own server is one of each kind, so the same model must do the same there and in this process. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { verify } from '../../src/audit/verify.ts';
import type { WorkflowContext } from '../../src/core/contracts.ts';
import { defineWorkflow } from '../../src/core/define.ts';
import type { RunEvent } from '../../src/core/events.ts';
import { compare, measuredIn } from '../../src/evaluation/compare.ts';
import { evaluateOnly, resumeEvaluation } from '../../src/evaluation/evaluate.ts';
import { openStoreOf } from '../../src/run/run-store.ts';
import { type Served, serve } from '../../src/serve/serve.ts';
import { SERVE_DEFAULTS } from '../../src/settings/server-defaults.ts';
import { train } from '../../src/training/train.ts';
import { sharedFolder } from '../fixtures/folder.ts';
import { localServer } from '../fixtures/local-server.ts';
import { refusal } from '../fixtures/refusal.ts';

const folder = sharedFolder();
const KEY = 'MEASURED_API_KEY';
const entry = 'examples/triage/agent.ts';
const ROWS = { entry, rows: '1-24', graderWorkers: 1 } as const;
const run = (name: string): string => join(folder, name);

let served: Served;
const servedTo = { onTurn: () => {}, onFailure: () => {}, warn: () => {} };
const unsaid = { model: undefined, token: undefined, entry: undefined, tasks: undefined };
const plain = { ...unsaid, maxGroups: undefined, groupTimeout: undefined };

beforeAll(async () => {
  served = await serve({ ...plain, ...SERVE_DEFAULTS, temperature: 0, run: run('serve') }, servedTo);
  process.env[KEY] = served.apiKey;
});
afterAll(async () => {
  delete process.env[KEY];
  await served[Symbol.asyncDispose]();
});

/** Passes requests on to the server unless `before` answers them. */
async function proxy(before: (call: number) => Promise<{ status: number; headers?: Record<string, string> } | undefined>) {
  let calls = 0;
  // The server may close a connection that was idle just when it is used again: the client then repeats the call after a 502, as it would anywhere.
  const server = await localServer(async (request, reply, body) => {
    const own = await before(++calls);
    if (own !== undefined) return void reply.writeHead(own.status, own.headers).end('{"error":{"message":"not now"}}');
    const headers = { authorization: request.headers.authorization ?? '', 'content-type': 'application/json' };
    const answer = await fetch(`${served.origin}${request.url}`, { method: 'POST', headers, body: Uint8Array.from(body) });
    reply.writeHead(answer.status, { 'content-type': 'application/json' }).end(await answer.text());
  });
  return { ...server, baseURL: served.baseURL.replace(served.origin, server.origin), calls: () => calls };
}

const rewardsOf = ({ tasks }: Awaited<ReturnType<typeof evaluateOnly>>) =>
  tasks.map(({ id, rollouts }) => [id, rollouts.map(({ reward }) => reward)]);

describe('a model behind an API', () => {
  it.each(['openai', 'anthropic'] as const)('is measured by its messages as it is in this process: %s', async (engine) => {
    const api = { engine, model: 'policy', baseURL: served.baseURL, apiKeyEnv: KEY };
    const events: RunEvent[] = [];
    const there = await evaluateOnly({ ...ROWS, ...api, price: [1, 3], run: run(engine) }, (event) => void events.push(event));
    const here = await evaluateOnly({ ...ROWS, run: run(`${engine}-here`) });
    expect(rewardsOf(there)).toEqual(rewardsOf(here));
    expect(there).toMatchObject({ failed: 0, calls: { n: 24, promptTokens: expect.any(Number) } });
    const { promptTokens, completionTokens, cost } = there.calls!;
    expect(completionTokens).toBeGreaterThan(24);
    expect(cost).toBeCloseTo((promptTokens + 3 * completionTokens) / 1e6, 12);
    const host = new URL(served.origin).host;
    expect(events[0]).toMatchObject({ type: 'eval-start', model: `policy at ${host}`, server: served.baseURL });

    const comparison = compare(await measuredIn(run(engine)), await measuredIn(run(`${engine}-here`)));
    expect(comparison).toMatchObject({ tasks: 24, success: { delta: 0 }, otherDifferences: [] });
    expect(comparison.models).toEqual({ a: `policy at ${host}`, b: expect.stringContaining('models/base') });

    const again = await resumeEvaluation({ run: run(engine) });
    expect({ ...again, run: null }).toEqual({ ...there, run: null });
    expect(await verify({ run: run(engine) })).toMatchObject({
      rewards: 24,
      different: 0,
      unchecked: [expect.stringContaining('API')],
    });
    await using store = await openStoreOf(run(engine));
    const [{ turns } = { turns: [] }] = await store.query({});
    expect(turns[0]).toMatchObject({ model: 'policy', trainable: true, usage: { promptTokens: expect.any(Number) } });
    expect(turns[0]!.sampledIds).toHaveLength(0);
    const files = readdirSync(run(engine), { recursive: true, withFileTypes: true }).filter((file) => file.isFile());
    for (const { parentPath, name } of files) expect(readFileSync(join(parentPath, name), 'latin1')).not.toContain(served.apiKey);
  });

  it('loses no rollout if every second call is answered with 429 or 500', async () => {
    await using flaky = await proxy(async (call) =>
      call % 2 === 0 ? undefined : { status: call % 4 === 1 ? 429 : 500, headers: { 'retry-after-ms': '5' } },
    );
    const api = { engine: 'openai', model: 'policy', baseURL: flaky.baseURL, apiKeyEnv: KEY, concurrency: 4 } as const;
    const there = await evaluateOnly({ ...ROWS, ...api });
    expect(there.failed).toBe(0);
    expect(rewardsOf(there)).toEqual(rewardsOf(await evaluateOnly(ROWS)));
    expect(flaky.calls()).toBeGreaterThan(40);
  });

  it('may take longer for its first answer than a rollout has; later answers may not', async () => {
    const warnings: RunEvent[] = [];
    await using slow = await proxy(async (call) => void (await sleep(call === 1 ? 1500 : 0)));
    const limits = { turns: 4, tokens: 1000, deadlineMs: 700 };
    const api = { engine: 'openai', model: 'policy', baseURL: slow.baseURL, apiKeyEnv: KEY, limits, rows: '1' } as const;
    expect(await evaluateOnly({ ...ROWS, ...api }, (event) => void warnings.push(event))).toMatchObject({ failed: 0 });
    await using slower = await proxy(async (call) => void (await sleep(call === 1 ? 0 : 1500)));
    const later = { ...ROWS, ...api, baseURL: slower.baseURL, rows: '1-2', concurrency: 1 } as const;
    expect(await evaluateOnly(later)).toMatchObject({ failed: 1 });
  });

  it('ends the run at the first call if it does not accept the key, and names its models if none was chosen', async () => {
    const api = { ...ROWS, engine: 'openai', baseURL: served.baseURL } as const;
    const refused = evaluateOnly({ ...api, model: 'policy', run: run('refused') });
    await expect(refused).rejects.toMatchObject({ code: 'POLICY_REFUSED', message: expect.stringMatching(/answered 401/) });
    await using store = await openStoreOf(run('refused'));
    expect(await store.count({})).toBe(0);
    await expect(evaluateOnly({ ...api, apiKeyEnv: KEY })).rejects.toThrow(refusal('USAGE', /offers policy$/));
    await expect(evaluateOnly({ ...api, model: 'policy', apiKeyEnv: 'NOT_SET' })).rejects.toThrow(/NOT_SET is not set/);
  });

  it('is not trained', async () => {
    const refused = train({ entry, engine: 'openai', model: 'gpt', baseURL: served.baseURL });
    await expect(refused).rejects.toThrow(refusal('USAGE', undefined, 'trainyard eval examples/triage/agent.ts'));
  });

  it('is served on, with its usage', async () => {
    const settings = { ...plain, ...SERVE_DEFAULTS, temperature: undefined, run: run('serve-on') };
    const api = { engine: 'openai', model: 'policy', baseURL: served.baseURL, apiKeyEnv: KEY } as const;
    await using on = await serve({ ...settings, ...api }, servedTo);
    expect(on).not.toHaveProperty('flowKey');
    const body = JSON.stringify({ model: 'any', messages: [{ role: 'user', content: 'My ring is broken.' }] });
    const headers = { authorization: `Bearer ${on.apiKey}`, 'content-type': 'application/json' };
    const answer = await fetch(`${on.baseURL}/chat/completions`, { method: 'POST', headers, body });
    expect(await answer.json()).toMatchObject({ usage: { completion_tokens: expect.any(Number) } });
  });
});

describe('training with nothing to train', () => {
  const grader = undefined;
  const tasks = Array.from({ length: 16 }, (_, i) => ({ id: `t${i}`, prompt: 'Hello?' }));
  const calls = { n: 0 };
  const house = (): string => `said ${calls.n++}`;
  const asking =
    (role?: string) =>
    async ({ model, prompt }: Pick<WorkflowContext, 'model' | 'prompt'>) => {
      await model(role).generate({ messages: prompt });
      return { reward: 1 };
    };

  it('is refused before the first call if every role has a default model', async () => {
    calls.n = 0;
    const workflow = defineWorkflow(asking() as never, { roles: { default: { default: house } }, trainable: [] });
    const refused = train({ entry: { workflow, grader }, tasks, run: run('none') });
    await expect(refused).rejects.toThrow(refusal('NO_SIGNAL', 'no role of the workflow is trainable'));
    expect(calls.n).toBe(0);
  });

  it('ends after a few rollouts if only they can tell', async () => {
    calls.n = 0;
    const workflow = defineWorkflow(asking('solver') as never, {
      roles: { solver: { default: house }, other: {} },
      trainable: ['other'],
    });
    const refused = train({ entry: { workflow, grader }, tasks, run: run('few'), concurrency: 4 });
    await expect(refused).rejects.toThrow(refusal('NO_SIGNAL', 'no turn of a trainable role'));
    expect(calls.n).toBeLessThan(20);
  });
});
