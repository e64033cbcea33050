/** What a worker returns is checked as if it had been sampled here. Each lie below was graded and stored once, and ended every resume. */
import { mkdtemp, readdir, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scriptedEngine } from '../../../packages/testing/src/trajectories.ts';
import { renderer, say, specOf } from '../../../test/fixtures/gateway/streams.ts';
import { databaseFor, needsPostgres } from '../../../test/postgres/server.ts';
import { until } from '../../../test/workers/site.ts';
import type { Trajectory, Turn } from '../../core/types.ts';
import { Gateway } from '../../gateway/gateway.ts';
import { endedAs } from '../../rollout/record.ts';
import type { RolloutSpec } from '../../rollout/runner.ts';
import { openPostgresStore } from '../../store/postgres.ts';
import { Coordinator } from './coordinator.ts';
import type { RolloutFile } from './files.ts';
import { ATTEMPTS, WorkQueue } from './queue.ts';

const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 16 };
const limits = { turns: 3, tokens: 40, deadlineMs: 1000 };
const engine = scriptedEngine({ vocabSize: renderer.vocabSize, contextLength: 100, reply: () => say('It costs $81.<|im_end|>') });

/** Two turns. */
async function honest(rolloutId: string): Promise<Trajectory> {
  const gateway = new Gateway({ engine, renderer, modelName: 'policy' });
  const session = gateway.open(specOf(rolloutId, { sampling }));
  for (const content of ['first', 'second']) await session.model().generate({ messages: [{ role: 'user', content }] });
  const times = { startedAt: 1, endedAt: 2 };
  const grade = { kind: 'ungraded', why: 'completed' } as const;
  return { ...session.spec.identity, outcome: { kind: 'completed' }, grade, turns: session.seal(), ...times };
}

type Lie = (turn: Turn, trajectory: Trajectory) => Partial<Turn>;
const inLast =
  (lie: Lie) =>
  (made: Trajectory): Trajectory => {
    const last = made.turns.at(-1)!;
    return { ...made, turns: made.turns.with(-1, { ...last, ...lie(last, made) }) };
  };
const asked = (changed: Partial<typeof sampling>) =>
  inLast(({ sampling: own }) => ({ sampling: { ...own, effective: { ...own.effective, ...changed } } }));
const returning = (returned: object) => (made: Trajectory) => ({ ...made, returned }) as Trajectory;
const file = (path: string, mode = 0o644): readonly RolloutFile[] => [
  { path: '.', mode: 0, bytes: Buffer.alloc(0) },
  { path: 'first', mode: 0o644, bytes: Buffer.from('x') },
  { path, mode, bytes: Buffer.from('x') },
];

describe('a result of a worker', needsPostgres, () => {
  let database: Awaited<ReturnType<typeof databaseFor>>;
  let queue: WorkQueue;
  let coordinator: Coordinator;
  let folder: string;
  const warnings: string[] = [];
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'trainyard-results-'));
    database = await databaseFor();
    await (await openPostgresStore(database.url, 'any'))[Symbol.asyncDispose]();
    queue = await WorkQueue.create(database.url);
    coordinator = await Coordinator.open({
      ...{
        url: database.url,
        run: 'run',
        staleness: 0,
        policy: { engine, renderer },
        limits,
        isTrained: (role) => role === 'default',
      },
      spec: { release: '0', entry: 'agent.ts', settings: {}, sources: {}, kernels: 'simd' },
      warn: (code, message) => void warnings.push(`${code}: ${message}`),
    });
  });
  afterAll(async () => {
    await coordinator[Symbol.asyncDispose]();
    await queue[Symbol.asyncDispose]();
    await database[Symbol.asyncDispose]();
    await rm(folder, { recursive: true });
  });

  let rollouts = 0;
  const begin = (artifacts?: string) => {
    const { identity } = specOf(`r${++rollouts}`);
    const spec = { identity, task: { id: identity.taskId, prompt: [], answer: '' }, sampling } as RolloutSpec;
    return { id: identity.rolloutId, result: coordinator.run({ signal: new AbortController().signal, artifacts }, spec) };
  };
  const finish = async (worker: string, lie: (made: Trajectory) => Trajectory, files: readonly RolloutFile[] = []) => {
    const claimed = await until(async () => (await queue.claim('run', 1, worker))[0]);
    await queue.finish('run', [{ ...claimed, trajectory: lie(await honest(claimed.job.identity.rolloutId)), files }]);
  };
  const same = (made: Trajectory): Trajectory => made;

  it.each<[string, (made: Trajectory) => Trajectory, RegExp]>([
    [
      'an id outside the vocabulary',
      inLast(({ sampledIds }) => ({ sampledIds: sampledIds.with(0, 999_999) })),
      /id 999999.*below/,
    ],
    ['a prompt id outside it', inLast(({ promptIds }) => ({ promptIds: promptIds.with(0, -1) })), /prompt id -1/],
    ['an empty prompt', inLast(() => ({ promptIds: new Int32Array(0) })), /prompt is empty/],
    ['a prompt beyond the context', inLast(() => ({ promptIds: new Int32Array(100).fill(5) })), /100 tokens/],
    ['ids beyond the context', inLast(() => ({ promptIds: new Int32Array(98).fill(5) })), /ids, expected at most 2/],
    ['more ids than asked for', inLast(() => longTurn(17)), /17 ids, expected at most 16/],
    ['a log-probability of −∞', inLast(({ logprobs }) => ({ logprobs: logprobs.with(0, -Infinity) })), /-Infinity/],
    ['no number', inLast(({ logprobs }) => ({ logprobs: logprobs.with(0, Number.NaN) })), /NaN/],
    ['a log-probability above 0', inLast(({ logprobs }) => ({ logprobs: logprobs.with(0, 0.5) })), /0\.5/],
    ['a stop id within', inLast(({ sampledIds }) => ({ sampledIds: sampledIds.with(0, sampledIds.at(-1)!) })), /after stop id/],
    ['a later version', inLast(() => ({ policyVersion: 1 })), /version 1, expected version 0/],
    ['another temperature', asked({ temperature: 0.5 }), /temperature 0\.5, expected 1, as was asked/],
    ['greedy sampling', asked({ temperature: 0 }), /temperature 0, expected 1/],
    ['top-p', asked({ topP: 0.1 }), /topP 0\.1, expected 1/],
    ['top-k', asked({ topK: 5 }), /topK 5, expected 0/],
    ['a larger budget', asked({ maxTokens: 17 }), /maxTokens 17, expected 16/],
    ['no ids', inLast(() => ({ sampledIds: new Int32Array(0), logprobs: new Float32Array(0) })), /no ids/],
    ['ids of a model known by its messages', inLast(() => ({ model: 'gpt' })), /ids of gpt/],
    ['a role that is not trained', inLast(() => ({ role: 'critic' })), /not trained: critic/],
    ['a turn in another place', inLast(() => ({ index: 7 })), /not in order/],
    ['a turn after none', inLast(() => ({ after: 1 })), /not in order/],
    ['a fork from itself', inLast(({ index }) => ({ fork: { cause: 'edited_message', from: index } })), /not in order/],
    [
      'words of another model, to be trained',
      inLast(() => ({
        model: 'gpt',
        promptIds: new Int32Array(0),
        sampledIds: new Int32Array(0),
        logprobs: new Float32Array(0),
      })),
      /what gpt said, to be trained/,
    ],
    ['nothing that was said', (made) => ({ ...made, turns: [] }), /as completed, without a turn/],
    ['too many turns', (made) => ({ ...made, turns: [...made.turns, ...made.turns] }), /with 4 turns, expected at most 3/],
    ['too many tokens', (made) => withTokens(made), /with 42 sampled tokens, expected at most 40/],
    ['a reward', (made) => ({ ...made, grade: { kind: 'graded', reward: { value: 1 } } }), /with a reward/],
    ['another rollout', (made) => ({ ...made, groupId: 'g9' }), /as another one/],
    ['a reward for no turn', returning({ reward: { value: 1, byTurn: { 9: 1 } } }), /turn "9"/],
    ['a reward without bounds', returning({ reward: { value: 1e300 } }), /1e\+300/],
    ['credit without bounds', returning({ credit: { turnDiscount: 1e9, per: 'turn' } }), /turnDiscount is 1000000000/],
  ])('that holds %s is refused by the names of worker and rollout, and runs again', async (_, lie, message) => {
    warnings.length = 0;
    const { id, result } = begin();
    await finish('liar', lie);
    await finish('other', same);
    expect(await result).toEqual(endedAs(await settled(id), null));
    expect(warnings).toEqual([expect.stringMatching(message)]);
    expect(warnings[0]).toMatch(new RegExp(`^RESULT_REFUSED: worker liar returned rollout ${id} .*; it runs again$`));
    coordinator.stored(id);
  });

  it.each<[string, readonly RolloutFile[], RegExp]>([
    ['a file outside', file('../evil'), /a file outside its folder: \.\.\/evil/],
    ['an absolute path', file('/evil'), /outside its folder/],
    ['an empty name', file('a//b'), /outside its folder/],
    ['a long name', file('x'.repeat(300)), /too long/],
    ['a long path', file(`${'x/'.repeat(1500)}x`), /too long/],
    ['control characters', file('a\u001b[31m'), /control characters: a·\[31m/],
    ['a folder that is a file', file('first/b'), /within another file: first\/b/],
    ['a file twice', file('first'), /twice: first/],
    ['a mode that is none', file('b', -1), /of mode -1: b/],
  ])('that holds %s is refused before anything is written', async (_, files, message) => {
    warnings.length = 0;
    const { id, result } = begin(join(folder, `f${rollouts}`));
    const into = join(folder, `f${rollouts - 1}`, id);
    await finish('liar', same, files);
    await until(async () => warnings.length > 0 || undefined);
    expect(warnings[0]).toMatch(message);
    expect(await readdir(folder)).not.toContain(`f${rollouts - 1}`);
    await finish('other', same, file('b', 0o6755));
    expect((await result).artifactsDir).toBe(into);
    expect((await readdir(into)).toSorted()).toEqual(['b', 'first']);
    expect((await stat(join(into, 'b'))).mode & 0o7777).toBe(0o755);
    coordinator.stored(id);
  });

  it('that is refused in every attempt ends its rollout as failed, with the names of all workers', async () => {
    const { result } = begin();
    for (let time = 1; time <= ATTEMPTS; time++) await finish(`liar-${time}`, asked({ temperature: 0.5 }));
    const made = await result;
    expect(made).toMatchObject({ turns: [], artifactsDir: null });
    expect(made.outcome).toMatchObject({
      kind: 'failed',
      code: 'RESULT_REFUSED',
      message: expect.stringMatching(/temperature 0\.5/),
    });
    expect(made.logs).toHaveLength(ATTEMPTS);
    for (let time = 1; time <= ATTEMPTS; time++) expect(JSON.stringify(made)).toContain(`liar-${time}`);
  });

  const settled = async (id: string) => {
    const { turns } = await honest(id);
    const times = { startedAt: expect.any(Number), endedAt: expect.any(Number) };
    const plain = turns.map((turn) => ({ ...turn, ...times }));
    return { ...(await honest(id)), turns: plain };
  };
});

function longTurn(length: number): Partial<Turn> {
  return { sampledIds: new Int32Array(length).fill(5), logprobs: new Float32Array(length).fill(-1) };
}

function withTokens(made: Trajectory): Trajectory {
  const turns = [0, 1, 2].map((index) => ({ ...made.turns[0]!, ...longTurn(14), index }));
  return { ...made, turns };
}
