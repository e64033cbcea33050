import { appendFile, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, expect, it, onTestFinished } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import { Answers } from '../gateway/answers.ts';
import type { LiveSession } from '../gateway/sessions.ts';
import { OpenRollouts } from './open-rollouts.ts';

const recorded = Array.from({ length: 50 }, (_, seed) => randomTrajectory(seed)).find(({ turns }) => turns.length > 1)!.turns;
const turns = recorded.slice(0, 2).map((turn, index) => ({ ...turn, index }));
const identity = { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train' } as const;
const session = { spec: { identity, roles: {} }, number: 7, remote: true, turns } as unknown as LiveSession;
let dir: string;
let file: string;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'trainyard-open-'));
  file = join(dir, '7.jsonl');
  onTestFinished(() => rm(dir, { recursive: true, force: true }));
});

it('gives back what was answered, bit for bit, whichever answer was written first, and without a half written line', async () => {
  const journal = await OpenRollouts.open(dir, 'policy');
  await journal.opened(session);
  await journal.answered(session, 'second', [turns[1]!]);
  await journal.answered(session, 'first', [turns[0]!]);
  await appendFile(file, '{"answer":{"key":"th');
  const again = await OpenRollouts.open(dir, 'policy');
  expect(again.secret).toEqual(journal.secret);
  const answers = [
    ['second', [1]],
    ['first', [0]],
  ];
  expect(await again.restore()).toEqual([
    { policy: 'policy', identity, roles: {}, number: 7, remote: true, ended: undefined, said: [], turns, answers },
  ]);
  // The half line is written over.
  await again.ended(7, 'r-2');
  expect(await (await OpenRollouts.open(dir, 'policy')).restore()).toMatchObject([{ ended: 'r-2' }]);
  await again.remove(7);
  await again.answered(session, 'late', turns);
  expect(await readdir(dir)).toEqual(['secret']);
});

it('leaves files alone that are not its own', async () => {
  await writeFile(`${file}.bak`, 'a copy');
  await writeFile(join(dir, '.DS_Store'), '');
  expect(await (await OpenRollouts.open(dir, 'policy')).restore()).toEqual([]);
  expect(await readdir(dir)).toHaveLength(3);
});

it('refuses a damaged file by its name, and forgets one whose opening was never acknowledged', async () => {
  await writeFile(file, '{"opened":{"identi');
  expect(await (await OpenRollouts.open(dir, 'policy')).restore()).toEqual([]);
  await writeFile(file, '{"opened":\n{}\n');
  const journal = await OpenRollouts.open(dir, 'policy');
  await expect(journal.restore()).rejects.toMatchObject({
    code: 'STORE_FAILED',
    message: expect.stringContaining('7.jsonl is damaged'),
  });
});

it('an answer that could not be kept is not given; the next attempt gets the same one', async () => {
  let isFull = true;
  const answers = new Answers<object>(async () => {
    if (isFull) throw new Error('no space left');
  });
  const value = {};
  await expect(answers.get('k', false, async () => value)).rejects.toThrow('no space left');
  isFull = false;
  expect((await answers.get('k', false, async () => ({}))).value).toBe(value);
});
