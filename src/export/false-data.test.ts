/** What is taught, compared and exported must be what was meant: causes of false data, one test each. */
import { readFile, writeFile } from 'node:fs/promises';
import { expect, it } from 'vitest';
import { folderOfEach } from '../../test/fixtures/folder.ts';
import { renderer, rendererWith } from '../../test/fixtures/tokens/base.ts';
import { lastThoughtTemplate } from '../../test/fixtures/tokens/templates.ts';
import { gradedRollout } from '../../test/fixtures/trained-rows.ts';
import type { RunEvent } from '../core/events.ts';
import { digestOf } from '../core/json.ts';
import type { Message, Reward, Task, Trajectory, Turn } from '../core/types.ts';
import { openSqliteStore } from '../store/sqlite.ts';
import { completed } from '../store/whole-output.ts';
import { areOwn, taughtTurns } from '../tokens/taught-turns.ts';
import { hasSignal } from '../training/advantages.ts';
import { makeBatch } from '../training/batch.ts';
import { readDemonstrations } from '../training/demonstrations.ts';
import { makePairs } from '../training/dpo.ts';
import { compared } from '../training/objective.ts';
import { sft } from '../training/sft.ts';
import { exportData } from './export-data.ts';

const options = { renderer, contextLength: 512 };
const at = folderOfEach();

const user = (content: string): Message => ({ role: 'user', content });
const said = (content: string): Message => ({ role: 'assistant', content });
const call = (index: number, messages: readonly Message[], response: Message, thread = 'main') => ({
  ...{ index, thread, role: 'default', stopReason: 'stop' as const, request: { messages, tools: [] }, response },
});
const rollout = (id: string, turns: readonly Turn[], reward: Reward, taskId = `task-${id}`): Trajectory => {
  return { ...gradedRollout(id, reward, turns), taskId };
};
const turnsOf = (...calls: readonly ReturnType<typeof call>[]) => taughtTurns(renderer, calls).turns;
const one = () => turnsOf(call(0, [user('Who?')], said('Me.')));

async function storeOf(...rollouts: readonly Trajectory[]): Promise<string> {
  await using store = await openSqliteStore(at('store.sqlite'));
  for (const each of rollouts) await store.append(each);
  return at('store.sqlite');
}

async function talks(count: number, same = false): Promise<string> {
  const line = (i: number) => ({ messages: [user(`Which word is number ${same ? i % 10 : i}?`), said(`It is word${i % 3}.`)] });
  const path = at('talks.jsonl');
  await writeFile(path, Array.from({ length: count }, (_, i) => `${JSON.stringify(line(i))}\n`).join(''));
  return path;
}

it('the same sft in a second process does not remove the directory of the one that is running', async () => {
  // Without validation nothing but the second one's end ends the first.
  const request = { from: await talks(64), run: at('run'), threads: 1, epochs: 1000, batch: 4, validation: 0 };
  const finish = new AbortController();
  let second: Promise<unknown> | undefined;
  const again = async (): Promise<unknown> => {
    const thrown = await sft(request).catch((thrown: unknown) => thrown);
    finish.abort();
    return thrown;
  };
  const first = await sft(
    request,
    ({ type }: RunEvent) => {
      if (type === 'sft-step') second ??= again();
    },
    { finish: finish.signal },
  );
  expect(first.ending).toBe('interrupted');
  // RUN_LOCKED or the like, not a second result.
  expect(await second).toBeInstanceOf(Error);
});

it('a held-out task whose row was edited since (answer, tag) is still held out from an evaluation of it', async () => {
  const task = (answer: string): Task => ({ id: 'row-1', prompt: [user('2+2?') as never], answer });
  const turns = turnsOf(call(0, [user('Question: 2+2?')], said('4')));
  await storeOf(rollout('r1', turns, { value: 1 }, 'row-1'), rollout('r2', one(), { value: 1 }, 'row-2'));
  const tasks = [{ row: 1, id: 'row-1', digest: digestOf([JSON.stringify(task('4'))]) }];
  await writeFile(at('run.json'), JSON.stringify({ kind: 'evaluation', tasks }));
  const { samples } = await readDemonstrations(at(), { ...options, heldOut: [task('four')] });
  expect(samples.map(({ rolloutId }) => rolloutId)).toEqual(['r2']);
});

it('held-out tasks without a prompt of their own hold out nothing else', async () => {
  const heldOut: Task[] = [{ id: 'x', prompt: [], metadata: { seed: 1 } }];
  expect((await readDemonstrations(await talks(3), { ...options, heldOut })).conversations).toBe(3);
});

it('ids of another tokenizer are not taken for own ones because curation excluded the turn that opens the conversation', () => {
  const [, second] = turnsOf(call(0, [user('a')], said('b')), call(1, [user('a'), said('b'), user('c')], said('d')));
  const foreign = { ...second!, after: 0, promptIds: second!.promptIds.map((id) => id + 1) };
  expect(areOwn(renderer, [foreign])).toBe(false);
});

it('a thread that the reward says is not trained is not taught', async () => {
  const turns = turnsOf(call(0, [user('a')], said('b')), call(1, [user('c')], said('d'), 'aside'));
  const { samples } = await readDemonstrations(await storeOf(rollout('r', turns, { value: 1, untrained: ['aside'] })), options);
  expect(samples).toHaveLength(1);
});

it('a success that was asked for in tokens is counted where it is left out', async () => {
  const turns = one().map((turn) => ({ ...turn, request: { ...turn.request, messages: [] } }));
  const from = await storeOf(rollout('r', turns, { value: 1 }));
  await expect(readDemonstrations(from, options)).rejects.toThrow(/nothing to teach: 1 /);
});

it('a response that was cut off while reasoning is not taught to end its reasoning', () => {
  const cut = { ...call(0, [user('a')], { ...said(''), reasoning: 'hm, and' }), stopReason: 'length' as const };
  const [turn] = taughtTurns(rendererWith(lastThoughtTemplate), [cut]).turns;
  expect(renderer.text(turn?.sampledIds ?? new Int32Array())).not.toContain('</think>');
});

it('conversations of a file with the same prompt are one task, on one side of the split', async () => {
  expect((await readDemonstrations(await talks(100, true), options)).tasks).toBe(10);
});

it('reinforce++ gives no batch whose advantages are all 0', () => {
  const untrained = one().map((turn) => ({ ...turn, trainable: false }));
  const group = [rollout('a', one(), { value: 1 }), rollout('b', untrained, { value: 0 })];
  const { samples, trainedTokens } = makeBatch(group, 'reinforce++');
  expect(trainedTokens === 0 || samples.some(({ advantages }) => advantages.some((value) => value !== 0))).toBe(true);
});

it('a group has signal for dpo only if it has a pair', () => {
  const untrained = one().map((turn) => ({ ...turn, trainable: false }));
  const group = [rollout('a', one(), { value: 1 }), rollout('b', untrained, { value: 0 })];
  const settings = { loss: 'dpo', limits: { tokens: 9 } } as Parameters<typeof compared>[1];
  expect(hasSignal(compared(group, settings))).toBe(makePairs(compared(group, settings)).trainedTokens > 0);
});

it('exported advantages are those of training, with its overlong penalty', async () => {
  const long = turnsOf(call(0, [user('Who?')], said('Me, and many others, at great length.')));
  await storeOf(rollout('a', one(), { value: 1 }), rollout('b', long, { value: 1 }));
  const settings = { algorithm: 'grpo', weighting: 'tokens', limits: { tokens: 30 }, overlongBuffer: 30 };
  await writeFile(at('run.json'), JSON.stringify({ settings }));
  const to = at('rows.jsonl');
  await exportData({ from: at(), format: 'jsonl', to });
  const [row] = (await readFile(to, 'utf8')).split('\n').map((line) => (line === '' ? {} : JSON.parse(line)));
  expect(row.advantages).not.toBeNull();
});

it('two exports to one path never give an unfinished file its name', async () => {
  const to = at('out.txt');
  const begun = Promise.withResolvers<void>();
  const release = Promise.withResolvers<void>();
  const first = completed(to, async (path) => {
    await writeFile(path, 'first, whole');
    begun.resolve();
    await release.promise;
  });
  await begun.promise;
  const half = Promise.withResolvers<void>();
  const second = completed(to, async (path) => {
    await writeFile(path, 'second, ha');
    release.resolve();
    half.resolve();
    await first.catch(() => {});
    await writeFile(path, 'second, whole');
  }).catch(() => 0);
  await half.promise;
  await first.catch(() => 0);
  expect(await readFile(to, 'utf8')).toBe('first, whole');
  await second;
});

it('rollouts of evaluations during a training are not taught', async () => {
  const evaluated = { ...rollout('e', turnsOf(call(0, [user('b')], said('c'))), { value: 1 }), purpose: 'eval' as const };
  const { samples, leftOut } = await readDemonstrations(await storeOf(rollout('r', one(), { value: 1 }), evaluated), options);
  expect([samples.map(({ rolloutId }) => rolloutId), leftOut]).toEqual([['r'], { 'of an evaluation during the training': 1 }]);
});

it('an id that two task files share holds nothing out where the conversation asks what the training task asks', async () => {
  const task = (content: string): Task => ({ id: '1', prompt: [user(content) as never] });
  const from = await storeOf(rollout('r', turnsOf(call(0, [user('Please: Who?')], said('Me.'))), { value: 1 }, '1'));
  const tasks = [task('Who?')];
  expect((await readDemonstrations(from, { ...options, tasks, heldOut: [task('Why?')] })).conversations).toBe(1);
  await expect(readDemonstrations(from, { ...options, tasks, heldOut: [task('Who?')] })).rejects.toThrow('held-out');
  await expect(readDemonstrations(from, { ...options, heldOut: [task('Why?')] })).rejects.toThrow('held-out');
});

it('a call that was forced keeps its ids: its beginning stands in the prompt', () => {
  const tools = [{ type: 'function' as const, function: { name: 'lookup', parameters: { type: 'object' } } }];
  const begun = renderer.callBeginning('lookup')!;
  const opened = { ...one()[0]!, request: { messages: [user('Who?')], tools } };
  const forced = { ...opened, promptIds: Int32Array.of(...renderer.open([user('Who?')], tools), ...begun) };
  expect(areOwn(renderer, [forced])).toBe(true);
});

it('teaching that only harms keeps no checkpoint, and says so', async () => {
  const events: RunEvent[] = [];
  const request = { from: await talks(64), run: at('run'), threads: 1, learningRate: 1, epochs: 1 };
  expect(await sft(request, (event) => events.push(event))).toMatchObject({ checkpoint: null });
  expect(events).toContainEqual(expect.objectContaining({ code: 'TAUGHT_NOTHING' }));
});

it('a tool call fits a template that demands ids of a certain length', () => {
  const tool_calls = [{ id: 'call_abc123', type: 'function' as const, function: { name: 'f', arguments: '{}' } }];
  const asked: string[] = [];
  const spoken: typeof renderer.spoken = (messages, tools, response) => {
    asked.push(...(response.tool_calls ?? []).map(({ id }) => id));
    return renderer.spoken(messages, tools, response);
  };
  taughtTurns({ ...renderer, toolCallIdLength: 9, spoken }, [call(0, [user('a')], { ...said(''), tool_calls })]);
  expect(asked).toEqual(['000000000']);
});
