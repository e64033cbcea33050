/** Isolation and stalls as a newcomer meets them: the real command, the shipped policy, a few tasks. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest';
import type { Trajectory } from '../../src/core/types.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { jsonLines, ROOT, scratch, trainyard } from '../cli/command.ts';
import { hasSandbox } from '../fixtures/sandbox.ts';

let home: Awaited<ReturnType<typeof scratch>>;
let tasks: string;
let heldOut: string;
beforeAll(async () => {
  home = await scratch();
  const lines = async (name: string, count: number): Promise<string> => {
    const text = await readFile(join(ROOT, 'examples/triage', name), 'utf8');
    return await home.write(name, text.split('\n').slice(0, count).join('\n'));
  };
  tasks = await lines('train.jsonl', 8);
  heldOut = await lines('held-out.jsonl', 4);
});
afterAll(() => home.remove());

const agent = (options: string): string => `
import OpenAI from 'openai';
import { execSync } from 'node:child_process';
import { defineGrader, defineWorkflow } from 'trainyard';

export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const client = new OpenAI(model.openai());
  const messages = [{ role: 'system' as const, content: 'Sort the message: billing, shipping, returns or repairs?' }, ...ctx.prompt];
  const completion = await client.chat.completions.create({ model: model.name, messages });
  if (process.env['BLOCK']) runTool();
  return completion.choices[0]?.message.content?.match(/\\w+$/)?.[0];
}, { ${options} });

function runTool(): void {
  execSync('sleep 1'); // here
}

export const grader = defineGrader(({ task, output }) => (output === task.answer ? 1 : 0));
`;

const timeless = ({ turns, outcome, grade, output, rolloutId }: Trajectory): unknown => ({
  ...{ rolloutId, outcome, grade, output },
  turns: turns.map((turn) => ({ ...turn, startedAt: 0, endedAt: 0 })),
});

async function trained(name: string, options: string): Promise<readonly unknown[]> {
  const entry = await home.write(`${name}.ts`, agent(options));
  const run = join(home.dir, name);
  const files = ['--tasks', tasks, '--held-out', heldOut, '--run', run];
  const small = ['--steps', '1', '--groups-per-step', '1', '--group', '4', '--workflow-workers', '2', '--json'];
  expect(await trainyard('train', entry, ...files, ...small)).toMatchObject({ code: 0, stderr: '' });
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  return (await store.query()).toSorted((a, b) => a.rolloutId.localeCompare(b.rolloutId)).map(timeless);
}

describe('the command', () => {
  it.skipIf(!hasSandbox)('trains a workflow in processes of its own as it does in this one', async () => {
    const apart = await trained('apart', "isolation: 'process'");
    expect(apart.length).toBeGreaterThan(8);
    expect(apart).toEqual(await trained('inside', ''));
  });

  it('names what blocked the event loop, by file, line and function', async () => {
    process.env['BLOCK'] = 'yes';
    onTestFinished(() => void delete process.env['BLOCK']);
    const text = agent('');
    const entry = await home.write('blocking.ts', text);
    const { code, stdout } = await trainyard('eval', entry, '--held-out', heldOut, '--run', join(home.dir, 'blocked'), '--json');
    expect(code).toBe(0);
    const line = text.split('\n').findIndex((one) => one.endsWith('// here')) + 1;
    const blocked = new RegExp(`blocking\\.ts:${line} runTool blocked all rollouts for \\d\\.\\d s; use an async`);
    expect(jsonLines(stdout).filter(({ type }) => type === 'warning')).toEqual([
      { type: 'warning', code: 'EVENT_LOOP_BLOCKED', message: expect.stringMatching(blocked) },
    ]);
  });
});
