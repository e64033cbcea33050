/**
 * What strangers write (the policy, graders of its answers, workers, servers, hubs) reaches the terminal as text: no record holds a control
 * character once the command has shown it, whichever field it came in, and what `--json` says is the same JSON without any.
 */
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { randomTrajectory } from '../../packages/testing/src/trajectories.ts';
import type { Trajectory, Turn } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { hubServer } from '../fixtures/hub-server.ts';
import { localServer } from '../fixtures/local-server.ts';
import { type Ended, ROOT, saidIn, start, useScratch } from './command.ts';
import { onTerminal } from './pty.ts';

/** A colour, a title with BEL, a cleared screen, CR, C1, reversed text, a line separator, an isolate, DEL, backspace. */
const HOSTILE = 'X\u001b[35mE\u001b]0;t\u0007\u001b[2J\r\u009b31m\u202e\u2028\u2066\u007f\u0008\u0000Y';
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]/;
/** The colours of our own. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: as above
const OURS = /\u001b\[(?:[12]|22|3[1-3]|39)m/g;

/** Of the view: hidden and shown cursor, erased lines, steps upwards, its colours; of the pseudo-terminal: CR before each newline. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: as above
const DRAWN = /\u001b\[(?:\?25[lh]|K|J|\d+A|3[56]m)|\r/g;

const plain = ({ stdout, stderr }: Pick<Ended, 'stdout' | 'stderr'>): void => {
  const found = CONTROL.exec((stdout + stderr).replaceAll(OURS, ''));
  expect(found && JSON.stringify(found.input.slice(Math.max(0, found.index - 80), found.index + 40))).toBeNull();
};

/** Every text that the record may hold. */
function hostile(given: Trajectory, ends: Pick<Trajectory, 'outcome' | 'grade'>): Trajectory {
  const call = { id: HOSTILE, type: 'function' as const, function: { name: HOSTILE, arguments: HOSTILE } };
  const turn = (index: number, more: Partial<Turn>): Turn => ({
    ...{ index, thread: HOSTILE, role: HOSTILE, trainable: true, policyVersion: 0, stopReason: 'stop', startedAt: 0, endedAt: 1 },
    ...{ promptIds: Int32Array.of(1, 2), sampledIds: Int32Array.of(4), logprobs: Float32Array.of(-1) },
    sampling: {
      ...{ requested: {}, effective: { temperature: 1, topP: 1, topK: 0, maxTokens: 9 }, seed: index },
      ...{ ignored: [HOSTILE], formatError: HOSTILE },
    },
    request: { messages: [{ role: 'user', content: HOSTILE }], tools: [] },
    response: { role: 'assistant', content: HOSTILE, reasoning: HOSTILE, tool_calls: [call] },
    ...more,
  });
  const failure = { code: HOSTILE, message: HOSTILE };
  return {
    ...{ ...given, ...ends, rolloutId: `${given.rolloutId}${HOSTILE}`, groupId: HOSTILE, taskId: HOSTILE, purpose: 'train' },
    turns: [turn(0, {}), turn(1, { model: HOSTILE, fork: { cause: 'edited_message', from: 0, message: 0 } })],
    ...{ output: HOSTILE, metadata: { [HOSTILE]: [HOSTILE] }, metrics: { [HOSTILE]: 1 } },
    logs: [{ at: given.startedAt, text: HOSTILE, from: 'workflow' }],
    unanswered: [
      { thread: HOSTILE, role: HOSTILE, turnsBefore: 0, promptTokens: 1, sampledTokens: 0, startedAt: 0, endedAt: 1, failure },
    ],
  } as Trajectory;
}

const ENDS: readonly Pick<Trajectory, 'outcome' | 'grade'>[] = [
  { outcome: { kind: 'completed' }, grade: { kind: 'failed', code: HOSTILE, message: HOSTILE } },
  { outcome: { kind: 'failed', code: HOSTILE, message: HOSTILE }, grade: { kind: 'ungraded', why: HOSTILE } },
  {
    outcome: { kind: 'rejected', reason: HOSTILE },
    grade: {
      kind: 'graded',
      reward: {
        ...{ value: 1, parts: { [HOSTILE]: 1 }, metrics: { [HOSTILE]: 1 }, byThread: { [HOSTILE]: 1 }, byRole: { [HOSTILE]: 1 } },
        untrained: [HOSTILE],
      },
    },
  },
];

const ENTRY = `
import OpenAI from 'openai';
import { defineGrader, defineWorkflow } from 'trainyard';
const said = ${JSON.stringify(HOSTILE)};
// Outside of rollouts it is the author who prints, who may use colours.
console.log(said.replace('\\u001b[35m', ''));
setTimeout(() => process.stderr.write(Buffer.from(said.replace('\\u001b[35m', ''))), 1);
export default defineWorkflow(async (ctx) => {
  console.log(said);
  process.stdout.write(said);
  if (ctx.task.id.startsWith('throws')) throw Object.assign(new Error(said), { code: said });
  const model = ctx.model();
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  await client.chat.completions.create({ model: model.name, messages: [...ctx.prompt], max_tokens: 8 });
  Promise.reject(new Error(said));
});
export const grader = defineGrader(({ task }) => {
  if (task.id.startsWith('fails')) throw new Error(said);
  return { value: Number(task.id.startsWith('one')), parts: { [said]: 1 }, metrics: { [said]: 2 } };
});
`;

const home = useScratch();
let store: string;
let entry: string;
beforeAll(async () => {
  store = join(home.dir, 'store.sqlite');
  await using opened = await openSqliteStore(store);
  for (const [seed, ends] of ENDS.entries()) await opened.append(hostile(randomTrajectory(seed), ends));
  entry = await home.write('agent.ts', ENTRY);
  const tasks = ['throws', 'fails', 'one', 'none'].map((id) =>
    JSON.stringify({ id, prompt: HOSTILE, metadata: { [HOSTILE]: HOSTILE } }),
  );
  await home.write('held-out.jsonl', tasks.join('\n'));
  await home.write('train.jsonl', tasks.join('\n'));
});

const MAIN = ['--conditions=trainyard-source', join(ROOT, 'src/cli/main.ts')];
const run = (...args: readonly string[]): Promise<Ended> => start(args, home.dir).ended;
const coloured = (...args: readonly string[]): Promise<Ended> => start(args, home.dir, 'export FORCE_COLOR=1').ended;

describe('text of strangers at the terminal', () => {
  it.each(ENDS.entries().toArray())('in every field of a stored rollout: %i', async (seed) => {
    const id = `rollout-${seed}${HOSTILE}`;
    // An argument holds no NUL.
    const listed = saidIn(await run('show', store, '--json')) as readonly { readonly rolloutId: string }[];
    expect(listed.map(({ rolloutId }) => rolloutId)).toContain(id);
    const filter = `rollout~"rollout-${seed}"`;
    plain(await coloured('show', store, '--filter', filter));
    plain(await run('show', store, '--filter', filter, '--json'));
  });

  it('in a rollout shown in full, and what curate and export say of it', async () => {
    const named = join(home.dir, 'named.sqlite');
    {
      await using opened = await openSqliteStore(named);
      for (const [seed, ends] of ENDS.entries()) {
        await opened.append({ ...hostile(randomTrajectory(seed), ends), rolloutId: `r${seed}` });
      }
    }
    for (const id of ['r0', 'r1', 'r2']) {
      plain(await coloured('show', named, id));
      plain(await run('show', named, id));
      const json = await run('show', named, id, '--json');
      plain(json);
      expect(JSON.stringify(saidIn(json))).toContain(JSON.stringify(HOSTILE).slice(1, -1));
    }
    plain(await coloured('curate', named, 'r0', '--reason', HOSTILE.replace('\0', '')));
    plain(await coloured('curate', named));
    plain(await coloured('verify', named));
    plain(await coloured('export', named, '--format', 'jsonl', '--to', join(home.dir, 'out.jsonl')));
  });

  it('that an agent, its grader and its tasks print, throw and are called', async () => {
    const one = await coloured('eval', entry, '--run', join(home.dir, 'eval-1'));
    expect(one.stdout + one.stderr).toContain('PRINTS_KEPT');
    plain(one);
    const json = await run('eval', entry, '--run', join(home.dir, 'eval-2'), '--json');
    plain(json);
    plain(await coloured('diff', join(home.dir, 'eval-1'), join(home.dir, 'eval-2')));
    for (const task of ['1', '2', '3']) plain(await coloured('try', entry, '--task', task));
    plain(await coloured('preflight', entry));
    plain(
      await coloured('train', entry, '--run', join(home.dir, 'train'), '--steps', '1', '--groups-per-step', '2', '--group', '2'),
    );
  });

  it('in the live view, where only what we draw moves the cursor', async () => {
    const args = ['eval', entry, '--run', join(home.dir, 'eval-3')];
    const { raw, ended } = onTerminal([process.execPath, ...MAIN, ...args], { columns: 100, rows: 30 });
    expect(await ended, raw()).toBe(0);
    const drawn = raw().replaceAll(DRAWN, '');
    plain({ stdout: drawn, stderr: '' });
    expect(raw()).not.toContain('\u001b[35mE');
  });

  it('of a model server, of a hub, and of a hub’s names', async () => {
    const error = { message: HOSTILE };
    await using server = await localServer((_, response) => response.writeHead(418).end(JSON.stringify({ error })));
    const url = `${server.origin}/v1`;
    plain(
      await coloured('eval', entry, '--engine', 'openai', '--base-url', url, '--model', 'm', '--run', join(home.dir, 'eval-4')),
    );
    const files = new Map([
      ['a.gguf', Buffer.alloc(9)],
      [`b${HOSTILE}.gguf`, Buffer.alloc(9)],
    ]);
    await using hub = await hubServer('Owner/Name', files);
    const get = (): Promise<Ended> =>
      start(['model', 'get', 'Owner/Name'], home.dir, `export FORCE_COLOR=1 HF_ENDPOINT=${hub.url} HF_HOME=${home.dir}`).ended;
    plain(await get());
    hub.api = (to) => void to.end(`<html>${HOSTILE}`);
    plain(await get());
  });
});
