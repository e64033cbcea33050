import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { refuses } from '../../test/fixtures/refusal.ts';
import { renderer } from '../../test/fixtures/tokens/base.ts';
import { gradedRollout, trainedTurn } from '../../test/fixtures/trained-rows.ts';
import type { RunEvent } from '../core/events.ts';
import type { Task, Trajectory } from '../core/types.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { taughtTurns } from '../tokens/taught-turns.ts';
import { readDemonstrations } from './demonstrations.ts';
import { sft } from './sft.ts';

const options = { renderer, contextLength: 512 };
const at = folderOfEach();

const conversation = (i: number, more: object = {}) => ({
  messages: [
    { role: 'user', content: `Which word is number ${i}?` },
    { role: 'assistant', content: `It is word${i % 3}.`, ...more },
  ],
});

async function fileOf(rows: readonly unknown[]): Promise<string> {
  const path = at('talks.jsonl');
  await writeFile(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(''));
  return path;
}

/** A rollout of a model behind an API, of which only messages are known. */
function rollout(id: string, value: number): Trajectory {
  const [user, response] = conversation(Number(id.slice(1))).messages as [never, never];
  const call = trainedTurn(0, { role: 'default', request: { messages: [user], tools: [] }, response });
  const [turn] = taughtTurns(renderer, [call]).turns;
  const none = { promptIds: new Int32Array(0), sampledIds: new Int32Array(0), logprobs: new Float32Array(0) };
  const rollout = gradedRollout(id, { value }, [{ ...turn!, ...none, model: 'gpt' }], id);
  return { ...rollout, taskId: `task-${id}`, purpose: 'eval' };
}

describe('what is read to be taught', () => {
  it('is every assistant message of a file of conversations, unless its weight is 0', async () => {
    const twice = { messages: [...conversation(1, { weight: 0 }).messages, ...conversation(2).messages] };
    const { samples, conversations, tasks } = await readDemonstrations(await fileOf([conversation(0), twice]), options);
    expect({ conversations, tasks }).toEqual({ conversations: 2, tasks: 2 });
    const trained = samples.map(({ tokens, mask }) => renderer.text(tokens.filter((_, i) => mask[i] === 1)));
    expect(trained).toEqual(['It is word0.', 'It is word2.']);
  });

  it('is the successes of a run, without what curation excludes and without held-out tasks; the rest is counted', async () => {
    const path = at('store.sqlite');
    {
      await using store = await openSqliteStore(path);
      for (const [i, value] of [1, 0, 1, 1, 1].entries()) await store.append(rollout(`r${i + 1}`, value));
      await store.mark([{ rolloutId: 'r3', excluded: true, reason: 'wrong', at: 1 }]);
    }
    const byId: Task = { id: 'task-r4', prompt: [{ role: 'user', content: 'something else' }] };
    const byPrompt: Task = { id: 'other', prompt: [{ role: 'user', content: 'Which word is number 5?' }] };
    const { samples, leftOut } = await readDemonstrations(path, { ...options, heldOut: [byId, byPrompt] });
    expect(samples.map(({ rolloutId }) => rolloutId)).toEqual(['r1']);
    expect(leftOut).toEqual({ 'of a held-out task': 2, 'not a success': 1, 'excluded by curation': 1 });
  });

  it('leaves out what does not fit into the context, and refuses a file in which nothing is left', async () => {
    const path = await fileOf([conversation(1)]);
    await refuses(
      readDemonstrations(path, { ...options, contextLength: 8 }),
      'DATASET_INVALID',
      'nothing to teach: 1 longer than the context of 8 tokens',
    );
    const heldOut: Task[] = [{ id: 'x', prompt: [{ role: 'user', content: 'Which word is number 1?' }] }];
    await expect(readDemonstrations(path, { ...options, heldOut })).rejects.toMatchObject({
      hint: expect.stringContaining('not on the held-out ones'),
    });
  });

  it.each([
    [{ messages: [{ role: 'user', content: 'x' }] }, 'no assistant message'],
    [{ messages: 'x' }, 'messages'],
    [{ prompt: 'x' }, 'found a task'],
  ])('names the line of a conversation that cannot be read: %j', async (row, found) => {
    const path = await fileOf([conversation(1), row]);
    const message = expect.stringMatching(new RegExp(`line 2.*${found}`));
    await expect(readDemonstrations(path, options)).rejects.toMatchObject({ code: 'DATASET_INVALID', message });
  });
});

describe('sft', () => {
  const small = { batch: 8, epochs: 4, threads: 1, learningRate: 3e-3, validation: 0.25, patience: 0 } as const;

  it('lowers the loss on tasks that it does not teach, keeps the best checkpoint only, and does the same again', async () => {
    const from = await fileOf(Array.from({ length: 32 }, (_, i) => conversation(i)));
    const events: RunEvent[] = [];
    const done = await sft({ ...small, from, run: at('a') }, (event) => events.push(event));
    const { before, after } = done.validationLoss!;
    expect(after).toBeLessThan(before / 2);
    const kept = await readdir(at('a/checkpoints'));
    expect(kept).toEqual([done.checkpoint!.split('/').at(-1)]);
    const measured = events.flatMap((event) => (event.type === 'sft-step' ? (event.validationLoss ?? []) : []));
    expect(Math.min(...measured)).toBe(after);
    const again = await sft({ ...small, from, run: at('b') });
    const weights = (path: string) => readFile(join(path, 'model.safetensors'));
    expect(await weights(again.checkpoint!)).toEqual(await weights(done.checkpoint!));
  });

  it('gives the kept result if the same was done before, begins an interrupted one anew, and refuses other leftovers', async () => {
    const from = await fileOf(Array.from({ length: 16 }, (_, i) => conversation(i)));
    const [run, finish] = [at('run'), new AbortController()];
    const stopping = (event: RunEvent) => event.type === 'sft-step' && finish.abort();
    const interrupted = await sft({ ...small, from, run }, stopping, { finish: finish.signal });
    expect(interrupted).toMatchObject({ ending: 'interrupted', steps: 1 });
    const done = await sft({ ...small, from, run });
    expect(done).toMatchObject({ ending: 'epochs', steps: 8 });
    const steps: RunEvent[] = [];
    const repeated = await sft({ ...small, from, run }, (event) => void (event.type === 'sft-step' && steps.push(event)));
    expect([repeated.checkpoint, steps]).toEqual([done.checkpoint, []]);
    await expect(sft({ ...small, from, run, seed: 2 })).rejects.toMatchObject({ code: 'RUN_NOT_EMPTY' });
  });

  it('ends when the loss on tasks that it does not teach no longer falls', async () => {
    const from = await fileOf(
      Array.from({ length: 32 }, (_, i) => ({
        ...conversation(i),
        messages: [conversation(i).messages[0], { role: 'assistant', content: `${(i * 7919) % 1000}` }],
      })),
    );
    const done = await sft({ ...small, epochs: 40, patience: 2, learningRate: 1e-2, from, run: at('run') });
    expect(done.ending).toBe('patience');
    expect(done.steps).toBeLessThan(40 * 3);
  });
});
