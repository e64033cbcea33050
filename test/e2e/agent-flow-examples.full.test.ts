/** The agent-flow examples as a newcomer runs them, briefly: every part real, on the shipped policy. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { AgentFlowManager, flowRegistry, SingleStepSingleTurnAgentFlow } from '../../src/agent-flow.ts';
import type { RunEvent } from '../../src/core/events.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { ROOT, scratch, start, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
const files: Record<string, string> = {};
const folder = join(ROOT, 'examples', 'agent-flow');
const flows = join(folder, 'flows.yaml');
beforeAll(async () => {
  home = await scratch();
  for (const name of ['triage', 'shop']) {
    for (const split of ['train', 'held-out']) {
      const lines = (await readFile(join(ROOT, 'examples', name, `${split}.jsonl`), 'utf8')).split('\n');
      files[`${name}-${split}`] = await home.write(
        `${name}-${split}.jsonl`,
        lines.slice(0, split === 'train' ? 60 : 6).join('\n'),
      );
    }
  }
});
afterAll(() => home.remove());

function lastOf(stdout: string): RunEvent & { type: 'eval-end' } {
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '{}');
}

describe('an example', () => {
  it.each([
    ['single-step.ts', 'triage', [join(folder, 'single-step.ts')]],
    ['multi-step.ts', 'shop', [join(folder, 'multi-step.ts')]],
    ['registered.ts', 'triage', [join(folder, 'registered.ts'), '--flow', 'my_agent_flow']],
    ['gsm8k-agent-flow.ts', 'shop', ['--flow', 'blackbox_gsm8k_agent', '--flows', flows]],
    ['process-agent-flow.ts', 'triage', ['--flow', 'process_agent', '--flows', flows, '--concurrency', '2']],
  ])('%s is evaluated, and no rollout fails', async (_, tasks, args) => {
    const { code, stdout, stderr } = await trainyard(
      'eval',
      ...args,
      '--run',
      join(home.dir, `eval ${args.join(' ').replaceAll('/', '_')}`),
      '--held-out',
      files[`${tasks}-held-out`]!,
      '--threads',
      '1',
      '--json',
    );
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(lastOf(stdout)).toMatchObject({ type: 'done', n: 6, failed: 0 });
  });

  it('of the flows file is trained, and taken up again', async () => {
    const run = join(home.dir, 'named');
    const small = ['--groups-per-step', '2', '--group', '4', '--eval-every', '0', '--threads', '1', '--json'];
    const named = ['--flow', 'single_step', '--flows', flows, '--tasks', files['triage-train']!, '--run', run];
    const first = await trainyard('train', ...named, ...small, '--steps', '1');
    expect({ code: first.code, stderr: first.stderr }).toEqual({ code: 0, stderr: '' });
    const again = await trainyard('train', '--resume', run, '--steps', '2', '--json');
    expect({ code: again.code, stderr: again.stderr }).toEqual({ code: 0, stderr: '' });
    expect(JSON.parse(again.stdout.trim().split('\n').at(-1) ?? '')).toMatchObject({ type: 'done', steps: 2 });
  });
});

describe('what is wrong with a call', () => {
  it('is said before anything runs: a flow that is not there', async () => {
    const { code, stderr } = await trainyard(
      'eval',
      '--flow',
      'nobody',
      '--flows',
      flows,
      '--held-out',
      files['triage-held-out']!,
    );
    expect(code).toBe(2);
    expect(stderr).toContain('no flow "nobody"; there are blackbox_gsm8k_agent, process_agent');
  });

  it('is said of tasks that ask for another flow, too', async () => {
    const tasks = await home.write(
      'asking.jsonl',
      JSON.stringify({ prompt: 'x', answer: 'y', metadata: { agent_name: 'nobody' } }),
    );
    const { code, stderr } = await trainyard('eval', '--flow', 'single_step', '--flows', flows, '--held-out', tasks);
    expect(code).toBe(2);
    expect(stderr).toContain('tasks ask for the flows nobody by agent_name');
  });
});

describe('trainyard serve', () => {
  it('captures flows of other processes, with their rewards or the grader’s', async () => {
    const run = join(home.dir, 'served');
    const grading = ['--entry', join(folder, 'single-step.ts'), '--tasks', files['triage-train']!];
    const server = start(['serve', '--json', '--threads', '1', '--run', run, ...grading]);
    while (!server.stdout().includes('\n')) await sleep(20);
    const { origin, flowKey } = JSON.parse(server.stdout().split('\n')[0]!) as { origin: string; flowKey: string };
    const post = async (url: string, body: object) => {
      const headers = { authorization: `Bearer ${flowKey}`, 'content-type': 'application/json' };
      return (await (await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })).json()) as Record<string, string>;
    };
    const manager = new AgentFlowManager({
      flows: flowRegistry([{ name: 'x', flow: SingleStepSingleTurnAgentFlow }]),
      defaultFlow: 'x',
      gatewayUrl: origin,
      gatewayKey: flowKey,
    });
    const rows = ['train-0001', 'train-0001', 'train-0002'].map((id) => ({ id, prompt: 'Where is it?' }));
    expect((await manager.run(rows)).map(({ kind }) => kind)).toEqual(['completed', 'completed', 'completed']);
    const { base_url: baseURL, api_key: apiKey } = await post(`${origin}/init_trajectory`, {});
    const client = new OpenAI({ baseURL: baseURL!, apiKey: apiKey! });
    await client.chat.completions.create({ model: 'any', messages: [{ role: 'user', content: 'hello' }], max_tokens: 4 });
    expect(await post(`${baseURL}/complete_trajectory`, { reward: 0.5 })).toEqual({ status: 'ok', num_steps: 1 });
    server.child.kill('SIGINT');
    expect((await server.ended).code).toBe(0);
    await using store = await openSqliteStore(join(run, 'store.sqlite'));
    const kept = await store.query();
    expect(
      kept
        .map(({ groupId }) => groupId)
        .slice(0, 3)
        .toSorted(),
    ).toEqual(['train-0001', 'train-0001', 'train-0002']);
    expect(kept.slice(0, 3).every(({ grade }) => grade.kind === 'graded')).toBe(true);
    expect(kept[3]).toMatchObject({ grade: { kind: 'graded', reward: { value: 0.5, source: 'workflow' } } });
  });
});
