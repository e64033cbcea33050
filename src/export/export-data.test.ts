import { existsSync } from 'node:fs';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { asyncBufferFromFile, parquetReadObjects } from 'hyparquet';
import { describe, expect, it } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { Store } from '../core/contracts.ts';
import type { Message, Reward, Trajectory, Turn } from '../core/types.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { type DataRequest, exportData, rowsOf } from './export-data.ts';

const at = folderOfEach();

const effective = { temperature: 1, topP: 1, topK: 0, maxTokens: 64 };
const asked: readonly Message[] = [{ role: 'user', content: 'How many?' }];

const turn = (index: number, prompt: readonly number[], sampled: readonly number[], more: Partial<Turn> = {}): Turn =>
  trainedTurn(index, {
    ...{ policyVersion: 3, promptIds: Int32Array.from(prompt), sampledIds: Int32Array.from(sampled) },
    // No float32 of these has a short decimal form.
    logprobs: Float32Array.from(sampled, (id) => -1 / (3 + id)),
    request: { messages: asked, tools: [] },
    response: { role: 'assistant', content: `answer ${index}` },
    ...more,
  });

function rollout(rolloutId: string, reward: Reward | undefined, turns: readonly Turn[], groupId = 'g1'): Trajectory {
  const graded = { ...gradedRollout(rolloutId, reward ?? { value: 0 }, turns, groupId), taskId: 't1' };
  return reward ? graded : { ...graded, grade: { kind: 'failed', code: 'GRADER_TIMEOUT', message: 'late' } };
}

/** An answer, one after what came back, one to a rewritten history, and one that the budget cut short. */
const forked = [
  turn(0, [1, 2], [3, 9]),
  turn(1, [1, 2, 3, 9, 4, 5], [6, 9], { policyVersion: 4 }),
  turn(2, [1, 2, 7], [8, 9], { fork: { cause: 'edited_message', from: 1 } }),
  turn(3, [1, 2, 7, 8, 9, 4], [5, 6], { stopReason: 'length' }),
];

async function kept(...rollouts: readonly Trajectory[]): Promise<string> {
  await using store = await openSqliteStore(at('store.sqlite'));
  for (const one of rollouts) await store.append(one);
  return at('store.sqlite');
}

async function exported(format: DataRequest['format'], more: Partial<DataRequest> = {}) {
  const to = at(`${format}.out`);
  const told = await exportData({ from: at('store.sqlite'), format, to, ...more });
  const isLines = format === 'jsonl' || format === 'openai';
  const lines = isLines
    ? (await readFile(to, 'utf8'))
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line) as object)
    : undefined;
  return {
    told,
    rows: (lines ?? (await parquetReadObjects({ file: await asyncBufferFromFile(to) }))) as Record<string, never>[],
  };
}

const bits = (numbers: readonly number[]): readonly number[] => [...new Uint32Array(Float32Array.from(numbers).buffer)];
const logprobsOf = (tokens: readonly number[], mask: readonly number[]) => tokens.map((id, i) => (mask[i] ? -1 / (3 + id) : 0));

describe('exported data', () => {
  it.each(['jsonl', 'parquet'] as const)(
    'in %s has every token, mask and log-probability as sampled, to the bit',
    async (format) => {
      await kept(rollout('a', { value: 1, parts: { form: 0.1 } }, forked), rollout('b', { value: 0 }, [turn(0, [1, 2], [5, 9])]));
      const { told, rows } = await exported(format);
      expect(told).toMatchObject({ rollouts: 2, rows: 3, purpose: 'train', only: 'graded', leftOut: {} });
      const masks = [
        [0, 0, 1, 1, 0, 0, 1, 1],
        [0, 0, 0, 1, 1, 0, 1, 1],
        [0, 0, 1, 1],
      ];
      const tokens = [
        [1, 2, 3, 9, 4, 5, 6, 9],
        [1, 2, 7, 8, 9, 4, 5, 6],
        [1, 2, 5, 9],
      ];
      const names = rows.map((row) => `${row['rollout_id']} ${row['sample']} ${row['group_id']}`);
      expect(names).toEqual(['a 0 g1', 'a 1 g1', 'b 0 g1']);
      expect(rows.map((row) => row['tokens'])).toEqual(tokens);
      expect(rows.map((row) => row['mask'])).toEqual(masks);
      expect(rows.map((row) => bits(row['logprobs']!))).toEqual(tokens.map((ids, i) => bits(logprobsOf(ids, masks[i]!))));
      // (1 - 0.5) / (0.5 + 1e-4), by GRPO.
      const advantages = masks.map((mask, i) =>
        bits(mask.map((one) => one * (i < 2 ? 1 : -1) * (0.5 / 0.5001)).map((n) => n + 0)),
      );
      expect(rows.map((row) => bits(row['advantages']!))).toEqual(advantages);
      expect(rows[0]!['turns']).toEqual([
        { index: 0, start: 2, end: 4, policy_version: 3, stop_reason: 'stop', reward: 1 },
        { index: 1, start: 6, end: 8, policy_version: 4, stop_reason: 'stop', reward: 1 },
      ]);
      expect([rows[0]!['parts'], rows[2]!['parts'], rows[0]!['tools']]).toEqual(['{"form":0.1}', null, '[]']);
      expect((rows[1]!['messages']! as readonly Message[]).map(({ content }) => content)).toEqual(['How many?', 'answer 3']);
    },
  );

  it('for TRL labels what was sampled, and for verl begins the response with it', async () => {
    await kept(rollout('a', { value: 1 }, forked.slice(0, 2)), rollout('b', { value: 0 }, [turn(0, [1, 2], [5, 9])]));
    const [row, ...others] = (await exported('trl')).rows;
    expect(others).toEqual([]);
    expect(row!['labels']).toEqual([-100, -100, 3, 9, -100, -100, 6, 9]);
    expect(row!['assistant_masks']).toEqual([0, 0, 1, 1, 0, 0, 1, 1]);
    const [verl] = (await exported('verl')).rows;
    expect(verl).toMatchObject({
      ...{ prompt: asked, prompt_ids: [1, 2], response_ids: [3, 9, 4, 5, 6, 9], response_mask: [1, 1, 0, 0, 1, 1] },
      ...{ reward_score: 1, num_turns: 4, uid: 'g1', reward_model: { style: 'rule', ground_truth: null } },
    });
    expect(bits(verl!['response_logprobs']!)).toEqual(bits([3, 9, 0, 0, 6, 9].map((id) => (id ? -1 / (3 + id) : 0))));
  });

  it('for OpenAI trains each answer once, none that was cut short, and none that the policy did not give', async () => {
    const made = { id: 'c', type: 'function', function: { name: 'f', arguments: '{' } } as const;
    const call: Message = { role: 'assistant', content: null, tool_calls: [made] };
    const result: Message = { role: 'tool', content: '3', tool_call_id: 'c' };
    const other: Message = { role: 'assistant', content: 'rewritten', reasoning: 'hm' };
    const said = (index: number, messages: readonly Message[], response: Message, stopReason: Turn['stopReason'] = 'stop') =>
      turn(index, [], [], { model: 'gpt', request: { messages, tools: [] }, response, stopReason });
    const three: Message = { role: 'assistant', content: 'Three.' };
    const turns = [
      said(0, asked, call),
      said(1, [...asked, call, result], three),
      said(2, [...asked, other], three),
      said(3, asked, { role: 'assistant', content: 'Thr' }, 'length'),
    ];
    await kept(rollout('a', { value: 1 }, turns));
    const { rows, told } = await exported('openai');
    const [{ content: _, ...calling }, { reasoning: _r, ...context }] = [call, other];
    expect(rows).toEqual([
      { messages: [...asked, calling, result, three] },
      { messages: [...asked, { ...context, weight: 0 }, three] },
    ]);
    expect(told).toMatchObject({ rows: 2, leftOut: { 'answers cut short': 1 } });
  });

  it('counts what it leaves out, by reason', async () => {
    const greedy = turn(0, [1], [2], { sampling: { requested: {}, effective: { ...effective, temperature: 0 }, seed: 0 } });
    const from = await kept(
      ...[rollout('good', { value: 1 }, [turn(0, [1], [2])]), rollout('late', undefined, [turn(0, [1], [2])])],
      ...[rollout('api', { value: 1 }, [turn(0, [], [], { model: 'gpt' })]), rollout('greedy', { value: 1 }, [greedy])],
      ...[rollout('marked', { value: 1 }, forked), rollout('by turn', { value: 0, byTurn: { 0: 1, 1: 0 } }, forked.slice(0, 2))],
    );
    await using store = await openSqliteStore(from);
    await store.mark([{ rolloutId: 'marked', excluded: true, reason: 'a leak', at: 1 }]);
    expect((await exported('verl')).told).toMatchObject({ rollouts: 1, rows: 1 });
    expect((await exported('jsonl')).told.leftOut).toEqual({
      'excluded by trainyard curate': 1,
      'without a reward': 1,
      'without tokens of the policy': 1,
      'sampled greedily, with top-p or top-k, or with impossible log-probabilities': 1,
    });
    // Without log-probabilities it does not matter how the tokens were sampled.
    expect((await exported('trl')).rows.map((row) => row['rollout_id'])).toEqual(['good', 'greedy']);
    expect((await exported('parquet', { only: 'all' })).rows.map((row) => row['reward'])).toEqual([1, null, 0]);
  });

  it('replaces nothing and leaves nothing unfinished', async () => {
    const from = await kept(rollout('a', { value: 0 }, [turn(0, [1], [2])]));
    await writeFile(at('mine'), 'mine');
    await expect(exportData({ from, format: 'jsonl', to: at('mine') })).rejects.toMatchObject({ code: 'USAGE' });
    expect(await readFile(at('mine'), 'utf8')).toBe('mine');
    const none = /holds no rollout that can be written, but 1 without success/;
    await expect(exportData({ from, format: 'trl', to: at('none') })).rejects.toThrow(none);
    await expect(exportData({ from, format: 'jsonl', to: at('none') }, AbortSignal.abort())).rejects.toThrow();
    expect(existsSync(at('none'))).toBe(false);
    expect((await readdir(at())).filter((name) => name.includes('unfinished'))).toEqual([]);
  });

  it('reads one group at a time, and only those of the purpose', async () => {
    const from = await kept(
      ...Array.from({ length: 12 }, (_, i) => rollout(`r${i}`, { value: i % 2 }, [turn(0, [1], [2])], `g${i % 4}`)),
      { ...rollout('held-out', { value: 1 }, [turn(0, [1], [2])], 'g0'), purpose: 'eval' },
    );
    await using store = await openSqliteStore(from);
    const sizes: number[] = [];
    const query: Store['query'] = async (filter) => {
      const found = await store.query(filter);
      sizes.push(found.length);
      return found;
    };
    const { groupIds, marks, manifests } = store;
    const watched = { query, groupIds: groupIds.bind(store), marks: marks.bind(store), manifests: manifests.bind(store) };
    const tally = { rollouts: 0, rows: 0, leftOut: {} };
    const request = { from, format: 'jsonl', to: at('unused'), purpose: 'train', only: 'graded' } as const;
    let asked = 0;
    for await (const _ of rowsOf(watched as unknown as Store, request, tally))
      expect(sizes.length).toBe(Math.floor(asked++ / 3) + 1);
    expect([sizes, tally.rows]).toEqual([[3, 3, 3, 3], 12]);
  });
});
