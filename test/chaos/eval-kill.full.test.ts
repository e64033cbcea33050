/**
 * An evaluation in a process that is killed with SIGKILL again and again and taken up again each time: it comes to what an undisturbed
 * one comes to, and what was acknowledged is never run or graded again.
 */
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { randomStream } from '../../src/engines/embedded/random.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { scratch, start } from '../cli/command.ts';

const KILLS = 20;
const TASKS = 40;
const ROLLOUTS = 4 * TASKS;
const CONCURRENCY = 4;
/** Gradings of one process before it is killed, at most: so few that something is left for every kill. */
const LONGEST_STRETCH = 6;

/** Each grading leaves a line with the id of its rollout. */
const ENTRY = `
import { appendFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  const { text } = await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 });
  await sleep(ctx.seed % 40);
  return { output: { rolloutId: ctx.rolloutId, text } };
});
export const grader = defineGrader(({ output }) => {
  const { rolloutId, text } = output as { rolloutId: string; text: string };
  appendFileSync(new URL('./graded.txt', import.meta.url), rolloutId + '\\n');
  const sum = [...text].reduce((codes, letter) => codes + (letter.codePointAt(0) ?? 0), 0);
  return (sum % 3) / 2;
});
`;

let home: Awaited<ReturnType<typeof scratch>>;
beforeAll(async () => {
  home = await scratch();
  await home.write('agent.ts', ENTRY);
  const line = (_: unknown, i: number): string =>
    JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?`, metadata: { tag: i % 2 === 0 ? 'even' : 'odd' } });
  await home.write('held-out.jsonl', Array.from({ length: TASKS }, line).join('\n'));
});
afterAll(() => home.remove());

/** Begins the evaluation, or goes on with it where its directory holds one. */
function run(name: string) {
  const directory = join(home.dir, name);
  const few = ['--concurrency', `${CONCURRENCY}`, '--threads', '1'];
  return existsSync(join(directory, 'run.json'))
    ? start(['eval', '--resume', directory, ...few])
    : start(['eval', join(home.dir, 'agent.ts'), '--run', directory, '--n', '4', ...few]);
}

function graded(): readonly string[] {
  const file = join(home.dir, 'graded.txt');
  return existsSync(file) ? readFileSync(file, 'utf8').split('\n').slice(0, -1) : [];
}

/** What each rollout that is on disk came to; nothing of it is about time. */
async function kept(name: string): Promise<ReadonlyMap<string, string>> {
  const file = join(home.dir, name, 'store.sqlite');
  if (!existsSync(file)) return new Map();
  await using store = await openSqliteStore(file);
  const said = (await store.query()).map(({ rolloutId, outcome, grade, turns }) => {
    const sampled = turns.map(({ sampledIds, logprobs }) => [[...sampledIds], [...logprobs]]);
    return [rolloutId, JSON.stringify([outcome, grade, sampled])] as const;
  });
  return new Map(said);
}

async function toTheEnd(name: string): Promise<void> {
  expect(await run(name).ended).toMatchObject({ code: 0, stderr: '' });
}

const metrics = (name: string): string => readFileSync(join(home.dir, name, 'metrics.json'), 'utf8');

/** Kills the process at some moment of its work. Whether it was still alive then. */
async function strike({ child, ended }: ReturnType<typeof run>, moment: (stop: AbortSignal) => Promise<unknown>) {
  const stop = new AbortController();
  await Promise.race([ended, moment(stop.signal)]);
  stop.abort();
  child.kill('SIGKILL');
  const { signal, code, stderr } = await ended;
  if (signal !== 'SIGKILL') expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return signal === 'SIGKILL';
}

/**
 * Goes through one evaluation with at most so many kills, and checks it against the undisturbed one. Returns how many struck: on a machine
 * that is slow to kill, the evaluation may be finished before all of them.
 */
async function disturbed(name: string, kills: number, random: ReturnType<typeof randomStream>): Promise<number> {
  rmSync(join(home.dir, 'graded.txt'), { force: true });
  /** What was on disk after each kill, and how many gradings there had been by then. */
  const acknowledged: { readonly ids: ReadonlySet<string>; readonly gradings: number }[] = [];
  while (acknowledged.length < kills) {
    const [before, share] = [graded().length, random.uniform()];
    // A few while it starts, finds its files and reads them; the others after some gradings, within those under way.
    const whileStarting = (): Promise<unknown> => sleep(share * 400);
    const whileWorking = async (stop: AbortSignal): Promise<void> => {
      while (!stop.aborted && graded().length <= before + share * LONGEST_STRETCH) await sleep(1);
      await sleep(random.uniform() * 10);
    };
    if (!(await strike(run(name), acknowledged.length % 5 === 4 ? whileStarting : whileWorking))) break;
    acknowledged.push({ ids: new Set((await kept(name)).keys()), gradings: graded().length });
  }
  await toTheEnd(name);
  for (const { ids, gradings } of acknowledged) {
    const later = graded().slice(gradings);
    expect(later.filter((id) => ids.has(id))).toEqual([]);
  }
  // What was under way when it was killed is all that is graded once more.
  expect(graded().length - ROLLOUTS).toBeLessThanOrEqual(acknowledged.length * CONCURRENCY);
  expect([...(await kept(name))].toSorted()).toEqual([...(await kept('undisturbed'))].toSorted());
  expect(metrics(name)).toBe(metrics('undisturbed'));
  return acknowledged.length;
}

it(`comes to the same after ${KILLS} kills, and grades nothing twice that was acknowledged`, { timeout: 300_000 }, async () => {
  await toTheEnd('undisturbed');
  expect(graded().toSorted()).toEqual([...(await kept('undisturbed')).keys()].toSorted());
  expect(graded()).toHaveLength(ROLLOUTS);
  const random = randomStream(7);
  let struck = 0;
  for (let round = 1; struck < KILLS; round++) {
    const more = await disturbed(`disturbed-${round}`, KILLS - struck, random);
    expect(more, 'kills that struck').toBeGreaterThan(0);
    struck += more;
  }
});
