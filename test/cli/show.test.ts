/** `trainyard show`: what a run kept, and why its conversations forked. */
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { Message, Trajectory, Turn } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { saidIn, sharedTrainyard, useScratch } from './command.ts';

const message = (role: 'system' | 'user' | 'assistant', content: string) => ({ role, content });
const turn = (index: number, more: Partial<Turn>): Turn => ({
  ...{ index, thread: 'main', role: 'policy', trainable: true, policyVersion: 0, stopReason: 'stop', startedAt: 0, endedAt: 1 },
  ...{ promptIds: Int32Array.of(1, 2, 3), sampledIds: Int32Array.of(4, 5), logprobs: Float32Array.of(-1, -2) },
  sampling: { requested: {}, effective: { temperature: 1, topP: 1, topK: 0, maxTokens: 9 }, seed: index },
  request: { messages: [message('user', 'hi')], tools: [] },
  response: message('assistant', `answer ${index}`),
  ...more,
});
const asking = (...messages: readonly Message[]) => ({ request: { messages, tools: [] } });

const home = useScratch();
beforeAll(async () => {
  await using store = await openSqliteStore(join(home.dir, 'store.sqlite'));
  const graded = { kind: 'graded', reward: { value: 1 } } as const;
  const keep = (seed: number, rolloutId: string, turns: readonly Turn[], more: Partial<Trajectory> = {}) =>
    store.append(
      randomTrajectory(seed, {
        ...{ taskId: 't', outcome: { kind: 'completed' }, grade: graded, purpose: 'train', rolloutId, turns, ...more },
      }),
    );
  await keep(1, 'plain', [turn(0, {})]);
  const fork = { cause: 'edited_message', from: 0, message: 1 } as const;
  await keep(2, 'forked', [turn(0, {}), turn(1, { fork, response: message('assistant', '\u001b[31mred') })]);
  const asked = [message('system', 'Be brief.'), message('user', 'What is 2 + 2?')];
  const lookup = { id: 'c', type: 'function' as const, function: { name: 'lookup', arguments: '{"sum":1}' } };
  const call = { role: 'assistant' as const, content: null, tool_calls: [lookup] };
  const result = { role: 'tool' as const, content: '4\n\u001b[31m', tool_call_id: 'c' };
  const last = message('assistant', `It is 4${'.'.repeat(300)}`);
  const turns = [
    turn(0, { ...asking(...asked), response: call }),
    // A client may send a call back in other words for nothing.
    turn(1, { after: 0, ...asking(...asked, { ...call, content: '' }, result), response: last }),
    turn(2, { thread: 'judge', ...asking(message('user', 'Is it right?')), response: message('assistant', 'yes') }),
    turn(3, { thread: 'judge', ...asking(message('user', 'Be slow.')), response: message('assistant', '') }),
  ];
  const parts = { kind: 'graded', reward: { value: 0.5, parts: { exact: 1 }, metrics: { cost: 0.0004 } } } as const;
  await keep(3, 'asked', turns, { grade: parts, purpose: 'eval', logs: [] });
});

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
    const forked = saidIn(await sharedTrainyard('show', home.dir, '--forks', '--json'));
    expect(forked).toMatchObject([{ rolloutId: 'forked', forks: { edited_message: 1 }, samples: 2 }]);
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
    const said = saidIn(await sharedTrainyard('show', home.dir, 'asked', '--json'));
    expect(said.map(({ type, prompt }) => `${type} ${prompt?.length}`)).toEqual([
      ...['turn 2', 'turn 1', 'turn 1', 'turn 1', 'ended undefined'],
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
