/** Turns of a default model behind the gateway: what is stored, checked, shown and counted of them. */
import { join } from 'node:path';
import { stripVTControlCharacters } from 'node:util';
import { describe, expect, it } from 'vitest';
import { checkHistory } from '../../packages/testing/src/check-history.ts';
import { recordHistory } from '../../packages/testing/src/record-history.ts';
import { turnText } from '../../src/cli/output/print-rollout.ts';
import { sampledTokensIn, turnSummary } from '../../src/core/turns.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { graderInput } from '../../src/grading/call.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { temporaryFolder } from '../fixtures/folder.ts';
import { ANSWER, ask, open, specOf } from '../fixtures/gateway/streams.ts';

async function playedRollout(): Promise<Trajectory> {
  let trained = true;
  const { session } = open({ replies: [ANSWER] });
  const model = session.model('player', {
    default: { name: 'house', generate: async () => ({ content: 'Fold.' }) },
    trainable: () => trained,
  });
  const { message } = await model.generate({ messages: ask });
  trained = false;
  await model.generate({ messages: [...ask, message, { role: 'user', content: 'and?' }] });
  const { identity } = specOf('r1');
  const grade = { kind: 'graded' as const, reward: { value: 1 } };
  return { ...identity, outcome: { kind: 'completed' }, grade, turns: session.seal(), startedAt: 0, endedAt: 1 };
}

const newStore = () => openSqliteStore(join(temporaryFolder(), 'store.sqlite'));

describe('a default model’s turn', () => {
  it('is stored and read as it was recorded', async () => {
    await using store = await newStore();
    const trajectory = await playedRollout();
    await store.append(trajectory);
    const kept = (await store.read('r1'))!;
    expect(kept.turns).toEqual(trajectory.turns);
    expect(kept.turns.map(({ model }) => model)).toEqual([undefined, 'house']);
  });

  it('is foreign to no history, and the policy’s own still would be', async () => {
    const trajectory = await playedRollout();
    const check = async (turns: Trajectory['turns']) => {
      const lines: string[] = [];
      await using store = await newStore();
      const recording = recordHistory((text) => void lines.push(text));
      await recording.store(store).append({ ...trajectory, turns });
      return checkHistory({ history: lines.join(''), trajectories: await store.query(), manifests: [], staleness: 0 }).foreign;
    };
    expect(await check([{ ...trajectory.turns[1]!, index: 0 }])).toEqual([]);
    expect(await check([trajectory.turns[0]!])).toHaveLength(1);
  });

  it('is shown with who said it, and costs no tokens', async () => {
    const { turns, ...rest } = await playedRollout();
    const shown = turns.map((turn) => stripVTControlCharacters(turnText(turnSummary(turn))));
    expect(shown[1]).toMatch(/1 player · said by house · \d+ ms · not trained\n\s+Fold\./);
    expect(shown[0]).not.toContain('said by');
    expect(sampledTokensIn({ turns, ...rest })).toBe(turns[0]!.sampledIds.length);
  });

  it('is seen by the grader like any other', async () => {
    const { turns, outcome } = await playedRollout();
    const input = graderInput({ id: 't1', prompt: [] }, { turns, outcome });
    expect(input.turns.map(({ response }) => response.content)).toEqual(turns.map(({ response }) => response.content));
    expect(input.messages.at(-1)).toEqual(turns[0]!.response);
  });
});
