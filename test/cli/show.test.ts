/** `trainyard show`: what a run kept, and why its conversations forked. */
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Turn } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { randomTrajectory } from '../../src/testing/trajectories.ts';
import { scratch, sharedTrainyard } from './command.ts';

const turn = (index: number, more: Partial<Turn>): Turn => ({
  index,
  thread: 'main',
  role: 'policy',
  trainable: true,
  promptIds: Int32Array.of(1, 2, 3),
  sampledIds: Int32Array.of(4, 5),
  logprobs: Float32Array.of(-1, -2),
  policyVersion: 0,
  stopReason: 'stop',
  sampling: { requested: {}, effective: { temperature: 1, topP: 1, topK: 0, maxTokens: 9 }, seed: index },
  request: { messages: [{ role: 'user', content: 'hi' }], tools: [] },
  response: { role: 'assistant', content: `answer ${index}` },
  startedAt: 0,
  endedAt: 1,
  ...more,
});

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
  await using store = await openSqliteStore(join(home.dir, 'store.sqlite'));
  const common = { taskId: 't', outcome: { kind: 'completed' }, grade: { kind: 'graded', reward: { value: 1 } } } as const;
  const fork = { cause: 'edited_message', from: 0, message: 1 } as const;
  const coloured = { role: 'assistant' as const, content: '\u001b[31mred' };
  await store.append(randomTrajectory(1, { ...common, purpose: 'train', rolloutId: 'plain', turns: [turn(0, {})] }));
  await store.append(
    randomTrajectory(2, {
      ...common,
      purpose: 'train',
      rolloutId: 'forked',
      turns: [turn(0, {}), turn(1, { fork, response: coloured })],
    }),
  );
  const said = (role: 'system' | 'user', content: string) => ({ role, content });
  const asked = [said('system', 'Be brief.'), said('user', 'What is 2 + 2?')];
  const function_ = { name: 'lookup', arguments: '{"sum":1}' };
  const call = {
    role: 'assistant' as const,
    content: null,
    tool_calls: [{ id: 'c', type: 'function' as const, function: function_ }],
  };
  const result = { role: 'tool' as const, content: '4\n\u001b[31m', tool_call_id: 'c' };
  const last = { role: 'assistant' as const, content: `It is 4${'.'.repeat(300)}` };
  await store.append(
    randomTrajectory(3, {
      ...common,
      grade: { kind: 'graded', reward: { value: 0.5, parts: { exact: 1 }, metrics: { cost: 0.0004 } } },
      purpose: 'eval',
      rolloutId: 'asked',
      logs: [],
      turns: [
        turn(0, { request: { messages: asked, tools: [] }, response: call }),
        // A client may send a call back in other words for nothing.
        turn(1, { after: 0, request: { messages: [...asked, { ...call, content: '' }, result], tools: [] }, response: last }),
        turn(2, {
          thread: 'judge',
          request: { messages: [said('user', 'Is it right?')], tools: [] },
          response: { role: 'assistant', content: 'yes' },
        }),
        turn(3, {
          thread: 'judge',
          request: { messages: [said('user', 'Be slow.')], tools: [] },
          response: { role: 'assistant', content: '' },
        }),
      ],
    }),
  );
});
afterAll(() => home.remove());

describe('trainyard show', () => {
  it('lists rollouts with their turns, samples and the causes of their forks', async () => {
    const { code, stdout } = await sharedTrainyard('show', home.dir);
    expect(code).toBe(0);
    expect(stdout).toMatch(/plain · task t · completed · reward 1 · 1 turn · 1 sample\n/);
    expect(stdout).toMatch(/forked · .* · 2 turns · 2 samples · forks: edited_message\n/);
    expect(stdout).toMatch(/asked · .* · reward 0\.5 · 4 turns · not for training · exact 1\.00 {2}cost 0\.0004\n/);
    expect(stdout).toContain('3 rollouts, 1 with forks');
  });

  it('with --forks lists only those that did not simply go on', async () => {
    const { stdout } = await sharedTrainyard('show', home.dir, '--forks', '--json');
    expect(
      stdout
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line)),
    ).toMatchObject([{ rolloutId: 'forked', forks: { edited_message: 1 }, samples: 2 }]);
  });

  it('shows one rollout turn by turn, without the escapes a model may have said', async () => {
    const { stdout } = await sharedTrainyard('show', home.dir, 'forked');
    expect(stdout).toContain('0 main · 3 + 2 tokens · rendered afresh');
    expect(stdout).toContain('edited_message at message 1, instead of going on from turn 0');
    expect(stdout).toContain('was assistant: answer 0');
    expect(stdout).not.toContain('\u001b[31m');
  });

  it('shows what was asked: all of it in the first turn of a thread, then only what is new', async () => {
    const { stdout } = await sharedTrainyard('show', home.dir, 'asked');
    const texts = stdout
      .split('\n')
      .slice(1)
      .filter((line) => /^ {4}\S/.test(line));
    expect(texts.map((line) => line.trim())).toEqual([
      ...['system: Be brief.', 'user: What is 2 + 2?', 'lookup({"sum":1})'],
      ...['tool: 4⏎·[31m', `It is 4${'.'.repeat(300)}`],
      ...['user: Is it right?', 'yes'],
      ...['user: Be slow.', '(said nothing)'],
    ]);
    expect(stdout).toContain('reward 0.5 (exact 1, metric cost 0.0004)');
  });

  it('shows the same as JSON, with the grade at the end', async () => {
    const { stdout } = await sharedTrainyard('show', home.dir, 'asked', '--json');
    const said = stdout
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(said.map(({ type, prompt }) => [type, prompt?.length])).toEqual([
      ...[
        ['turn', 2],
        ['turn', 1],
        ['turn', 1],
        ['turn', 1],
      ],
      ['ended', undefined],
    ]);
    expect(said[0].prompt[1]).toEqual({ role: 'user', content: 'What is 2 + 2?' });
    expect(said.at(-1)).toMatchObject({ outcome: { kind: 'completed' }, grade: { reward: { value: 0.5, parts: { exact: 1 } } } });
  });

  it('says what to do when there is no such run or rollout', async () => {
    const missing = await sharedTrainyard('show', join(home.dir, 'nowhere'));
    expect([missing.code, missing.stderr]).toEqual([2, expect.stringContaining('give the directory of a run')]);
    const unknown = await sharedTrainyard('show', home.dir, 'nobody');
    expect([unknown.code, unknown.stderr]).toEqual([2, expect.stringContaining('holds no rollout "nobody"')]);
  });
});
