/**
 * Trains a small agent in a process that is killed with SIGKILL again and again and taken up again each time, then compares: the
 * last checkpoint must be, byte for byte, that of a run that nobody disturbed, and the history must be clean.
 *
 *     node --conditions=source test/chaos/kill.ts --kills 20 --seed 1
 *
 * Kills come by number of lines of history (the same point every time for a seed) and by the clock, in turns. Exits 1 if anything
 * differs.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { randomStream } from '../../src/nn/random.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { checkHistory, FAULTS, type HistoryReport } from '../../src/testing/check-history.ts';
import { ROOT, scratch } from '../cli/command.ts';
import type { KillRun } from '../fixtures/kill-run.ts';

export interface KillOutcome {
  /** Kills that struck; one by the clock may come after the end. */
  readonly kills: number;
  readonly report: HistoryReport;
  /** What differs from the undisturbed run; empty when all is well. */
  readonly differences: readonly string[];
}

/** Rewards differ within a group whatever the policy says. */
const ENTRY = `
import OpenAI from 'openai';
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  const model = ctx.model();
  const client = new OpenAI({ baseURL: model.baseURL, apiKey: model.apiKey });
  const messages: any[] = [...ctx.prompt];
  for (let turn = 0; turn < 2; turn++) {
    const reply = await client.chat.completions.create({ model: model.name, messages, max_tokens: 12 });
    messages.push({ role: 'assistant', content: reply.choices[0]!.message.content ?? '' }, { role: 'user', content: 'and?' });
  }
});
export const grader = defineGrader(({ messages }) => (messages.at(-1)?.content ?? '').length % 2);
`;

export async function killRun({ kills, seed }: { readonly kills: number; readonly seed: number }): Promise<KillOutcome> {
  const home = await scratch();
  try {
    const entry = await home.write('agent.ts', ENTRY);
    const task = (id: number) => JSON.stringify({ id: `t${id}`, prompt: `Question ${id}?` });
    await home.write('train.jsonl', [1, 2, 3, 4, 5].map(task).join('\n'));
    await home.write('held-out.jsonl', [101, 102].map(task).join('\n'));
    const play = (name: string): KillRun => ({
      request: { entry, run: join(home.dir, name), steps: 3 + Math.ceil(kills / 3), group: 4, groupsPerStep: 2 },
      history: join(home.dir, `${name}.jsonl`),
    });
    const [undisturbed, disturbed] = [play('undisturbed'), play('disturbed')];
    const startedAt = performance.now();
    await runToTheEnd(undisturbed);
    const milliseconds = performance.now() - startedAt;
    const struck = await disturb(disturbed, { kills, seed, milliseconds, lines: linesIn(undisturbed) });
    await runToTheEnd(disturbed);
    const differences = await compare(undisturbed, disturbed);
    return { kills: struck, report: await judge(disturbed), differences };
  } finally {
    await home.remove();
  }
}

interface Plan {
  readonly kills: number;
  readonly seed: number;
  /** What the undisturbed run took. */
  readonly milliseconds: number;
  readonly lines: number;
}

/**
 * The run is cut into as many stretches as there are kills, and one more to end in; each kill strikes somewhere in its own. One in
 * four of those by the clock strikes while the process is still starting.
 */
async function disturb(run: KillRun, { kills, seed, milliseconds, lines }: Plan): Promise<number> {
  const random = randomStream(seed);
  const stretch = lines / (kills + 1);
  let struck = 0;
  for (let kill = 0; kill < kills; kill++) {
    const byClock = kill % 2 === 1;
    const written = linesIn(run);
    const target = Math.ceil((kill + random.uniform()) * stretch);
    const last = byClock ? Math.ceil((kill + 1) * stretch) : target;
    const { ended, child } = start({ ...run, killAtLine: Math.max(1, last - written), share: random.uniform() });
    if (byClock) {
      const isStarting = random.uniform() < 0.25;
      while (!isStarting && isAlive(child) && linesIn(run) < target) await sleep(5);
      await Promise.race([ended, sleep(random.uniform() * (isStarting ? 500 : (milliseconds / lines) * stretch))]);
      child.kill('SIGKILL');
    }
    const { signal, code, stderr } = await ended;
    if (signal === 'SIGKILL') struck++;
    else if (code !== 0) throw new Error(`after ${struck} kills the run ended with ${code}: ${stderr}`);
  }
  return struck;
}

const isAlive = (child: ChildProcess): boolean => child.exitCode === null && child.signalCode === null;

function linesIn({ history }: KillRun): number {
  return existsSync(history) ? readFileSync(history, 'utf8').split('\n').length : 0;
}

async function runToTheEnd(run: KillRun): Promise<void> {
  const { code, stderr } = await start(run).ended;
  if (code !== 0) throw new Error(`the run ended with ${code}: ${stderr}`);
}

function start(run: KillRun) {
  const fixture = join(ROOT, 'test/fixtures/kill-run.ts');
  const child = spawn(process.execPath, ['--conditions=source', fixture, JSON.stringify(run)], {
    cwd: ROOT,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  type Ended = { readonly code: number | null; readonly signal: NodeJS.Signals | null; readonly stderr: string };
  const ended = new Promise<Ended>((resolve) => child.on('exit', (code, signal) => resolve({ code, signal, stderr })));
  return { child, ended };
}

async function judge(run: KillRun): Promise<HistoryReport> {
  await using store = await openSqliteStore(join(run.request.run, 'store.sqlite'));
  const [trajectories, manifests] = [await store.query(), await store.manifests()];
  return checkHistory({ history: readFileSync(run.history, 'utf8'), trajectories, manifests, staleness: 0 });
}

/** Checkpoints byte by byte, and which rollouts made which step. */
async function compare(a: KillRun, b: KillRun): Promise<readonly string[]> {
  const [left, right] = [await outcomeOf(a), await outcomeOf(b)];
  const names = new Set([...left.keys(), ...right.keys()]);
  return [...names].filter((name) => left.get(name) !== right.get(name)).toSorted();
}

async function outcomeOf({ request: { run } }: KillRun): Promise<ReadonlyMap<string, string>> {
  const outcome = new Map<string, string>();
  const checkpoints = (await readdir(join(run, 'checkpoints'))).toSorted();
  const last = join('checkpoints', checkpoints.at(-1) ?? 'none');
  for (const name of await readdir(join(run, last))) {
    outcome.set(join(last, name), await readFile(join(run, last, name), 'base64'));
  }
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  for (const { step, rolloutIds } of await store.manifests()) outcome.set(`step ${step}`, rolloutIds.join());
  return outcome;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { kills: { type: 'string', default: '20' }, seed: { type: 'string', default: '1' } } });
  const { kills, report, differences } = await killRun({ kills: Number(values.kills), seed: Number(values.seed) });
  const faults = FAULTS.flatMap((kind) => report[kind].map(({ id, why }) => `${kind} ${id}: ${why}`));
  const { processes, ok, unknown, steps, trajectories } = report.counts;
  const problems = [...differences.map((name) => `differs from the undisturbed run: ${name}`), ...faults];
  process.stdout.write(
    `${problems.map((problem) => `${problem}\n`).join('')}${problems.length === 0 ? 'clean' : 'NOT CLEAN'}: ${kills} kills, ` +
      `${processes} processes, ${steps} steps, ${trajectories} trajectories, ${ok} operations acknowledged, ${unknown} unknown, ` +
      `${report.recovered.length} recovered, seed ${values.seed}\n`,
  );
  if (problems.length > 0) process.exitCode = 1;
}
