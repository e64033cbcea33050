/** The examples as a newcomer runs them, briefly: every part real, on the shipped policy. Whether they learn is in bench/LOG.md. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { CLERK_PROMPT, customerPrompt } from '../../models/desk-domain.ts';
import { SYSTEM_PROMPT } from '../../models/shop-domain.ts';
import { TRIAGE_PROMPT } from '../../models/triage-domain.ts';
import type { TrainDone } from '../../src/core/events.ts';
import type { Trajectory, Turn } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { makeBatch } from '../../src/trainer/batch.ts';
import { ROOT, scratch, trainyard } from '../cli/command.ts';

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
});
afterAll(() => home.remove());

interface BriefRun {
  readonly done: TrainDone;
  readonly trajectories: readonly Trajectory[];
}

/** Two steps of the example's own agent on its own tasks, the first twenty of the held-out ones. */
async function trainBriefly(example: string): Promise<BriefRun> {
  const folder = join(ROOT, 'examples', example);
  const run = join(home.dir, example);
  const lines = (await readFile(join(folder, 'held-out.jsonl'), 'utf8')).split('\n').slice(0, 20);
  const heldOut = await home.write(`${example}.jsonl`, lines.join('\n'));
  const small = ['--steps', '2', '--groups-per-step', '4', '--held-out', heldOut, '--run', run, '--json'];
  const { code, stdout, stderr } = await trainyard('train', join(folder, 'agent.ts'), ...small);
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const done = JSON.parse(stdout.trim().split('\n').at(-1) ?? '') as BriefRun['done'];
  return { done, trajectories: await store.query() };
}

function systemPromptOf(turn: Turn | undefined): string | null | undefined {
  return turn?.request.messages[0]?.content;
}

describe.each([
  ['shop', SYSTEM_PROMPT],
  ['triage', TRIAGE_PROMPT],
  ['desk', CLERK_PROMPT],
])('the %s example', (example, prompt) => {
  let run: BriefRun;
  beforeAll(async () => {
    run = await trainBriefly(example);
  });

  it('trains, is evaluated before and after, and no rollout fails', () => {
    expect(run.done).toMatchObject({ type: 'done', steps: 2, before: { n: 20, failed: 0 }, after: { n: 20, failed: 0 } });
    expect(new Set(run.trajectories.map(({ outcome }) => outcome.kind))).toEqual(new Set(['completed']));
  });

  it('asks with the prompt that the base policy was pretrained on', () => {
    for (const { turns } of run.trajectories) expect(systemPromptOf(turns[0])).toBe(prompt);
  });

  it('is solved now and then, so that there is something to learn from', () => {
    const rewards = run.trajectories.flatMap(({ purpose, grade }) =>
      purpose === 'train' && grade.kind === 'graded' ? [grade.reward.value] : [],
    );
    expect(new Set(rewards)).toEqual(new Set([0, 1]));
  });
});

describe('the customer of the desk', () => {
  let training: readonly Trajectory[];
  beforeAll(async () => {
    await using store = await openSqliteStore(join(home.dir, 'desk', 'store.sqlite'));
    training = await store.query({ purpose: 'train' });
  });

  const turnsOf = ({ turns }: Trajectory, role: string) => turns.filter((turn) => turn.role === role);

  it('is asked in some rollouts, and knows what it wants', () => {
    const asked = training.flatMap((trajectory) => turnsOf(trajectory, 'customer'));
    expect(asked.length).toBeGreaterThan(10);
    for (const turn of asked) {
      expect(turn).toMatchObject({ trainable: false, sampling: { effective: { temperature: 0 } } });
      expect(systemPromptOf(turn)).toMatch(new RegExp(`^${customerPrompt('\\d "\\w+ \\w+" in \\w+')}$`));
    }
  });

  it('has no token in what is trained: that is, token by token, what the clerk sampled', () => {
    const { samples, rolloutIds } = makeBatch(training);
    const rollouts = training.filter(({ rolloutId }) => rolloutIds.includes(rolloutId));
    expect(rollouts.flatMap((rollout) => turnsOf(rollout, 'customer')).length).toBeGreaterThan(5);
    for (const rollout of rollouts) {
      const trained = samples
        .filter(({ rolloutId }) => rolloutId === rollout.rolloutId)
        .flatMap(({ tokens, mask }) => [...tokens].filter((_, index) => mask[index] === 1));
      expect(trained).toEqual(turnsOf(rollout, 'clerk').flatMap(({ sampledIds }) => [...sampledIds]));
    }
  });

  it('tells the clerk nothing but its replies', () => {
    for (const rollout of training) {
      const replies = turnsOf(rollout, 'customer').map(({ response }) => response.content ?? '');
      const heard =
        turnsOf(rollout, 'clerk')
          .at(-1)
          ?.request.messages.filter(({ role }) => role === 'user') ?? [];
      expect(heard.slice(1).map(({ content }) => content)).toEqual(replies.slice(0, heard.length - 1));
    }
  });
});
