/**
 * An agent under `isolation: 'process'` that tries to be rewarded for what it did not do gets what an honest agent gets that said the same.
 *
 * Each trick is also tried where nothing stands in its way, so that none is thought to be prevented because it never worked.
 */
import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Workflow } from '../../src/core/contracts.ts';
import type { Trajectory } from '../../src/core/types.ts';
import { listen } from '../../src/gateway/gateway.ts';
import { openGraderPool } from '../../src/grading/pool.ts';
import { startWorkflow } from '../../src/rollout/runner.ts';
import { mountAgentFlow } from '../../src/shapes/flows/flow-routes.ts';
import { scratch } from '../cli/command.ts';
import { hasSandbox, needsSandbox } from '../fixtures/sandbox.ts';
import { rolloutsThrough, scriptedGateway } from '../fixtures/scripted-gateway.ts';

const SECRET = 'the-answer-93c1e7';
const KEY = 'the-run-key-93c1e7';

interface Bench extends AsyncDisposable {
  readonly project: string;
  readonly run: string;
  /** The workflow may be said to be another than it is. */
  try(trick: string, as?: Partial<Workflow>): Promise<Trajectory>;
  text(name: string): string;
}

async function bench(isSandboxed: boolean): Promise<Bench> {
  const home = await scratch();
  const project = home.dir;
  const run = join(project, 'runs/this');
  const fixture = new URL('../fixtures/processes/reward-hacker.ts', import.meta.url).pathname;
  const entry = join(project, 'agent.ts');
  cpSync(fixture, entry);
  const task = { id: 't', prompt: [{ role: 'user' as const, content: 'Say it.' }], answer: SECRET };
  for (const folder of ['runs/this/artifacts/other', 'runs/earlier', 'node_modules/dep'])
    mkdirSync(join(project, folder), { recursive: true });
  const tasks = await home.write('train.jsonl', JSON.stringify(task));
  await home.write('reference.json', '"right"');
  for (const name of ['this', 'earlier']) await home.write(`runs/${name}/store.sqlite`, SECRET);
  await home.write('runs/earlier/run.json', '{}');
  await home.write('runs/this/artifacts/other/kept.txt', SECRET);
  await home.write('node_modules/dep/index.js', '');

  const { gateway } = scriptedGateway(() => 'wrong');
  const listener = await listen(gateway);
  const { default: workflow } = (await import(pathToFileURL(entry).href)) as { default: Workflow };
  const module = { url: pathToFileURL(entry).href, exportName: 'default' };
  const { signal } = new AbortController();
  const files = isSandboxed ? { run, tasks: [tasks] } : undefined;
  const [started, grader] = await Promise.all([
    startWorkflow(workflow, { module, workers: 1, signal, files }),
    openGraderPool({ module: entry, exportName: 'grader', workers: 1 }),
  ]);
  mountAgentFlow(gateway, { grader, taskOf: () => task });
  const rollout = rolloutsThrough(gateway);
  return {
    ...{ project, run },
    try: (trick, as = {}) =>
      rollout(
        {
          ...{ ...started, workflow: { ...started.workflow, ...as }, grader, artifacts: join(run, 'artifacts') },
          limits: { turns: 8, tokens: 1000, deadlineMs: 30_000 },
        },
        { ...task, metadata: { trick, project, run, tasks, pid: process.pid } },
      ),
    text: (name) => readFileSync(join(project, name), 'utf8'),
    async [Symbol.asyncDispose]() {
      await started[Symbol.asyncDispose]();
      await grader[Symbol.asyncDispose]();
      await listener[Symbol.asyncDispose]();
      await home.remove();
    },
  };
}

/** What counts of a rollout: how it ended, what it earned, what is trained. */
const counted = ({ outcome, grade, output, turns }: Trajectory): unknown => ({
  ...{ outcome, grade, output },
  turns: turns.map(({ request, response, sampledIds, logprobs, trainable }) => [
    ...[request, response, sampledIds, logprobs, trainable],
  ]),
});
const got = ({ logs }: Trajectory): string => logs?.map(({ text }) => text).join('\n') ?? '';

let confined: Bench;
let open: Bench;
let honest: unknown;
let honestTurns: unknown;
beforeAll(async () => {
  process.env['TINKER_API_KEY'] = KEY;
  [confined, open] = await Promise.all([bench(hasSandbox), bench(false)]);
  const trajectory = await confined.try('nothing');
  honest = counted(trajectory);
  honestTurns = trajectory.turns.map(({ response, sampledIds }) => [response.content, sampledIds]);
  expect(trajectory).toMatchObject({ output: 'wrong', grade: { kind: 'graded', reward: { value: 0, parts: { match: 0 } } } });
});
afterAll(async () => {
  delete process.env['TINKER_API_KEY'];
  await confined?.[Symbol.asyncDispose]();
  await open?.[Symbol.asyncDispose]();
});

/** It ended as the honest one did, or without a grade. */
function expectHonest(trajectory: Trajectory): void {
  if (trajectory.outcome.kind === 'completed') expect(counted(trajectory)).toEqual(honest);
  else expect(trajectory).toMatchObject({ outcome: { kind: 'failed', code: 'WORKFLOW_FAILED' }, grade: { kind: 'ungraded' } });
}

describe('an agent that claims a reward gets none', () => {
  it.each([
    ...['print a reward', 'forge answers on the channel', 'use reward routes', 'leave something behind', 'break the channel'],
    ...['no end at all', 'another end', 'a rejection without words', 'an error that cannot be stored', 'an error of no kind'],
    'notes that are no texts',
  ])('by its trick or by what it says in the name of its process (%s); nor does the rollout after it there', async (trick) => {
    expectHonest(await confined.try(trick));
    expectHonest(await confined.try('nothing'));
    expect(counted(await confined.try('nothing'))).toEqual(honest);
  });

  it('by speaking for its own process, though what it says of its output is heard as if it had returned it', async () => {
    const { output, grade } = await confined.try('an end of its own');
    expect({ output, grade }).toMatchObject({ output: 'forged', grade: { kind: 'graded', reward: { value: 0 } } });
  });

  it.each([
    ...['a list without end', 'credit that cannot be stored', 'an output with a prototype', 'an output that says what it is'],
    ...['an output that changes', 'metrics named like ours'],
  ])('by returning %s', async (returned) => {
    const { turns: _turns, ...stored } = await confined.try(returned);
    const { outcome, grade } = stored;
    if (outcome.kind === 'completed') expect(grade).toMatchObject({ kind: 'graded', reward: { value: 0, parts: { match: 0 } } });
    else expect({ outcome, grade }).toMatchObject({ outcome: { kind: 'failed' }, grade: { kind: 'ungraded' } });
    // As it is stored.
    expect(JSON.parse(JSON.stringify(stored))).toEqual(stored);
    expect(({} as { value?: unknown }).value).toBeUndefined();
  });

  it('by speaking with its key after its end, while it is graded or later', async () => {
    const trajectory = await confined.try('speak after its end');
    expect(counted(trajectory)).toEqual(honest);
    expect(got(await confined.try('tell what was left'))).toBe('410');
    expect(trajectory.turns).toHaveLength(1);
  });

  it('by the routes that give rewards: each refuses its key, while its model is there', async () => {
    const statuses = JSON.parse(`[${got(await confined.try('use reward routes'))}]`) as number[];
    expect(statuses).toHaveLength(10);
    expect(statuses.filter((status) => status < 400 || status >= 500)).toEqual([]);
    // Those of a flow are there, and know that this is none: compute_reward, submit_steps, init_trajectory, complete_trajectory.
    expect([...statuses.slice(0, 3), statuses[7]]).toEqual([403, 403, 403, 403]);
  });

  it('for another rollout: its key is for its own', async () => {
    const trajectory = await confined.try('speak for another rollout');
    expect(got(trajectory)).toMatch(/^(401|403|404),401,(401|403|404)$/);
    expect(counted(trajectory)).toEqual(honest);
  });

  it('by returning one, unless the developer lets the agent reward itself', async () => {
    const trusted = await confined.try('print a reward', { grading: 'when-missing' });
    expect(trusted.grade).toMatchObject({ reward: { value: 1, source: 'workflow' } });
  });

  it('by what is in its environment and arguments', async () => {
    expect(got(await confined.try('look for keys in its environment'))).not.toMatch(new RegExp(`${KEY}|${SECRET}`));
  });
});

describe('in its sandbox an agent', needsSandbox, () => {
  it.each(['read the tasks', 'read the store', 'read an earlier run', 'read what others kept'])('cannot %s', async (trick) => {
    const trajectory = await confined.try(trick);
    expect(got(trajectory)).not.toContain(SECRET);
    expect(counted(trajectory)).toEqual(honest);
    expect(got(await open.try(trick))).toContain(SECRET);
  });

  it('cannot look into the run or its neighbours, nor reach them', async () => {
    const looked = got(await confined.try('look into other processes'));
    expect(looked).not.toContain('dist/workers');
    expect(looked).toMatch(/^memory (EACCES|ENOENT), root (EACCES|ENOENT), files (EACCES|ENOENT)\n/);
    expect(got(await confined.try('reach the run'))).toBe('ESRCH');
    expect(got(await open.try('look into other processes'))).toMatch(/^memory open, root \d+, files \d+\n.*dist\/workers/s);
    expect(got(await open.try('reach the run'))).toBe('true');
  });

  it.each([
    ['change the grader', 'agent.ts', /changed$/],
    ['change a package', 'node_modules/dep/index.js', /changed$/],
    ['change the tasks', 'train.jsonl', /"changed":1/],
    ['change what others kept', 'runs/this/artifacts/other/kept.txt', /^changed$/],
  ])('cannot %s', async (trick, file, changed) => {
    const before = confined.text(file);
    const trajectory = await confined.try(trick);
    expect(confined.text(file)).toBe(before);
    expect(counted(trajectory)).toEqual(honest);
    await open.try(trick);
    expect(open.text(file)).toMatch(changed);
  });

  it('cannot change what the grader reads, which would pay', async () => {
    const trajectory = await confined.try('change what the grader reads');
    expect([got(trajectory), counted(trajectory)]).toEqual(['EROFS', honest]);
    expect((await open.try('change what the grader reads')).grade).toMatchObject({ reward: { value: 1 } });
    writeFileSync(join(open.project, 'reference.json'), '"right"');
  });

  it('cannot change what it kept once it has ended, by what it left running', async () => {
    const changed = async (bench: Bench): Promise<unknown> => {
      const { rolloutId } = await bench.try('hold on to what it keeps');
      await bench.try('change what was held on to');
      const kept = join('runs/this/artifacts', rolloutId);
      return [bench.text(join(kept, 'own.txt')), existsSync(join(bench.project, kept, 'by-name'))];
    };
    expect(await changed(confined)).toEqual(['own....', false]);
    expect(await changed(open)).toEqual(['changed', true]);
  });

  it('keeps files where its grader finds them, without links that lead out of them', async () => {
    const { rolloutId } = await confined.try('keep a link to the tasks');
    const kept = join('runs/this/artifacts', rolloutId);
    expect(confined.text(join(kept, 'own.txt'))).toBe('own');
    expect(confined.text(join(kept, 'link.txt'))).toBe('own');
    expect(['deep', 'deep/kept.txt'].map((name) => existsSync(join(confined.project, kept, name)))).toEqual([true, false]);
    const unhindered = await open.try('keep a link to the tasks');
    expect(open.text(join('runs/this/artifacts', unhindered.rolloutId, 'deep/kept.txt'))).toContain(SECRET);
  });
});

// Last, because its process is of no use after it.
it('an agent that changes what its process is made of gets no reward, and spoils only its own rollouts there', async () => {
  for (const trick of ['change what the process is made of', 'nothing']) {
    const { turns, grade } = await confined.try(trick);
    expect(grade).not.toMatchObject({ reward: { value: 1 } });
    expect(turns.map(({ response, sampledIds }) => [response.content, sampledIds])).toEqual(honestTurns);
  }
});
