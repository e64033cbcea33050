/**
 * Small trainings under faults, one after another until so many faults were made, each compared with one that nobody disturbed: processes
 * killed, ended, or stopped for a while, clocks that jump, a full disk, a store whose server dies or whose lines fail. Every run must end,
 * with the same rollouts, steps and weights. A seed draws the place and the faults and their times; what they hit depends on the machine's
 * speed. Most faults are made while the coordinator is at work, some while it starts.
 */
import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Store } from '../../src/core/contracts.ts';
import { messageOf } from '../../src/core/errors.ts';
import { randomStream } from '../../src/engines/embedded/random.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { scratch } from '../cli/command.ts';
import { type Clocks, diskFault, type Fault, LEASE_SECONDS, processFaults } from './faults.ts';
import { compare, type Result, resultOf } from './outcome.ts';
import { type Command, Role } from './role.ts';
import { type SmallDisk, smallDisk } from './small-disk.ts';

export interface ChaosOptions {
  readonly seed: number;
  /** Made in all, over as many runs as it takes. */
  readonly faults: number;
  /** No run is begun after so many. */
  readonly minutes: number;
  readonly say: (line: string) => void;
}

export interface ChaosOutcome {
  readonly faults: number;
  /** Rollouts that were kept once, or are in the undisturbed run, and are missing or differ; steps that are missing. */
  readonly lost: number;
  /** Rollouts that are there twice, in two steps, or that the undisturbed run does not have. */
  readonly duplicated: number;
  /** Stores with a record whose digest does not fit, or that cannot be read. */
  readonly torn: number;
  readonly weightsEqual: boolean;
  readonly seed: number;
  readonly runs: number;
  readonly kinds: Readonly<Record<string, number>>;
  /** Faults that found the coordinator starting, or not there; all others found it at work. */
  readonly whileStarting: number;
  readonly skipped: readonly string[];
  readonly problems: readonly string[];
}

/** What keeps the records of runs, and where their rollouts run. */
export interface StoreSite {
  readonly name: string;
  /** 0: rollouts run in the coordinator. */
  readonly workers: number;
  /** For the store. */
  readonly coordinatorFlags: readonly string[];
  workerFlags(worker: number): readonly string[];
  readonly faults: readonly Fault[];
  open(run: string): Promise<Store>;
}

interface Site extends StoreSite {
  readonly entry: string;
  readonly dir: string;
  readonly disk: SmallDisk | undefined;
}

const STEPS = 24;
const TASKS = 8;
const FAULTS_PER_RUN = 10;
/** A fault comes at most so long after the last one, or after the coordinator is at work again. */
const LONGEST_GAP_MS = 1_800;
/** Of faults, that wait until the coordinator is at work. */
const SHARE_AT_WORK = 0.8;
const LONGEST_START_MS = 20_000;
/** A run that takes longer hangs. */
const RUN_DEADLINE_MS = 300_000;

/** Rewards look random to the policy, so that they differ within groups to the end. Rollouts end in another order than they begin. */
const ENTRY = `
import { setTimeout as sleep } from 'node:timers/promises';
import { defineGrader, defineWorkflow } from 'trainyard';
export default defineWorkflow(async (ctx) => {
  const { text } = await ctx.model().generate({ messages: ctx.prompt, maxTokens: 12 });
  await sleep(50 + (ctx.seed % 150));
  return { output: text };
});
export const grader = defineGrader(({ output }) => {
  const sum = [...String(output)].reduce((codes, letter) => codes + (letter.codePointAt(0) ?? 0), 0);
  return (sum % 3) / 2;
});
`;

/** In a file of the run's directory, with rollouts in the process that trains. */
export const FILES: StoreSite = {
  ...{ name: 'SQLite', workers: 0, coordinatorFlags: [], workerFlags: () => [], faults: [] },
  open: (run) => openSqliteStore(join(run, 'store.sqlite')),
};

/** Each seed has its site: the one at this number, beginning again after the last. */
export async function chaos(options: ChaosOptions, sites: readonly StoreSite[]): Promise<ChaosOutcome> {
  const { seed, faults, minutes, say } = options;
  const home = await scratch();
  const disk = smallDisk();
  const skipped = typeof disk === 'string' ? [`disk full: ${disk}`] : [];
  try {
    const entry = await home.write('agent.ts', ENTRY);
    const task = (_: unknown, i: number): string => JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?`, answer: '' });
    await home.write('train.jsonl', Array.from({ length: TASKS }, task).join('\n'));
    const own = typeof disk === 'string' ? { dir: home.dir, disk: undefined } : { dir: disk.dir, disk };
    mkdirSync(join(own.dir, 'tmp'));
    const tally = new Tally();
    const reference = await undisturbed({ ...FILES, ...own, entry });
    const until = performance.now() + minutes * 60_000;
    for (let run = seed; tally.faults < faults && performance.now() < until; run++) {
      const site = { ...sites[run % sites.length]!, ...own, entry };
      const left = Math.min(FAULTS_PER_RUN, faults - tally.faults);
      await disturbed(site, { seed: run, faults: left, name: `run-${run}`, reference, tally, say });
    }
    return { ...tally.outcome(), seed, skipped };
  } finally {
    if (typeof disk !== 'string') disk[Symbol.dispose]();
    await home.remove();
  }
}

class Tally {
  faults = 0;
  runs = 0;
  lost = 0;
  duplicated = 0;
  torn = 0;
  weightsEqual = true;
  whileStarting = 0;
  readonly kinds: Record<string, number> = {};
  readonly problems: string[] = [];

  made(kind: string, isWorking: boolean): void {
    this.faults++;
    if (!isWorking) this.whileStarting++;
    this.kinds[kind] = (this.kinds[kind] ?? 0) + 1;
  }

  outcome(): Omit<ChaosOutcome, 'seed' | 'skipped'> {
    const { faults, runs, lost, duplicated, torn, weightsEqual, kinds, whileStarting, problems } = this;
    return { faults, lost, duplicated, torn, weightsEqual, runs, kinds, whileStarting, problems };
  }
}

/** What a process keeps for a while is on the small disk too. */
const envOf = ({ dir }: Site) => ({ TMPDIR: join(dir, 'tmp'), TRAINYARD_LEASE_SECONDS: `${LEASE_SECONDS}` });

function trainCommand({ entry, coordinatorFlags, workers }: Site, run: string): readonly string[] {
  const sizes = ['--groups-per-step', '2', '--group', '4', '--steps', `${STEPS}`, '--eval-every', '0', '--checkpoint-every', '3'];
  const begun = existsSync(join(run, 'run.json'));
  const where = workers === 0 ? [] : ['--workers', 'external'];
  const own = begun
    ? ['--resume', run]
    : [entry, '--run', run, '--threads', '1', '--learning-rate', '0.0001', ...sizes, ...where];
  return ['train', ...own, ...coordinatorFlags, '--json'];
}

const COORDINATOR_SAYS = { working: /"type":"run-start"/, done: /"type":"done".*"ending":"steps"/ };
const WORKER_SAYS = { working: /"type":"working"/ };

async function undisturbed(site: Site): Promise<Result> {
  const run = join(site.dir, 'undisturbed');
  const command = () => ({ args: trainCommand(site, run), env: envOf(site) });
  const role = { name: 'the undisturbed run', command, says: COORDINATOR_SAYS, isDisturbed: () => false };
  await new Role(role).toTheEnd();
  const result = await resultIn(site, run);
  if (result.manifests.length !== STEPS) throw new Error(`the undisturbed run made ${result.manifests.length} steps`);
  return result;
}

async function resultIn(site: Site, run: string): Promise<Result> {
  await using store = await site.open(run);
  return await resultOf(store, run);
}

interface Disturbed {
  readonly seed: number;
  readonly faults: number;
  readonly name: string;
  readonly reference: Result;
  readonly tally: Tally;
  readonly say: (line: string) => void;
}

/** When something was done. */
class Disturbance {
  #last = 0;
  #isUnderWay = false;

  readonly since = (time: number): boolean => this.#isUnderWay || this.#last >= time;

  async during(fault: () => Promise<string | undefined>): Promise<string | undefined> {
    this.#isUnderWay = true;
    try {
      return await fault();
    } finally {
      [this.#isUnderWay, this.#last] = [false, performance.now()];
    }
  }
}

async function disturbed(site: Site, { seed, faults, name, reference, tally, say }: Disturbed): Promise<void> {
  const run = join(site.dir, name);
  /** What was on disk at some time. */
  const kept = new Set<string>();
  const [disturbance, clocks]: [Disturbance, Clocks] = [new Disturbance(), new Map()];
  const { coordinator, workers } = rolesOf(site, run, { disturbance, clocks, kept, say });
  const possible = [
    ...processFaults('coordinator', [coordinator], clocks),
    ...(workers.length === 0 ? [] : processFaults('worker', workers, clocks)),
    ...(site.disk === undefined ? [] : [diskFault(site.disk)]),
    ...site.faults,
  ];
  let hasEnded = false;
  const ends = Promise.race([coordinator, ...workers].map((role) => role.toTheEnd())).finally(() => {
    hasEnded = true;
  });
  const nemesis = async (): Promise<void> => {
    for (let [made, tried] = [0, 0]; made < faults && !hasEnded; tried++) {
      // Its own stream, so that faults without anything to hit do not change those after them.
      const random = randomStream(1_000 * seed + tried);
      if (random.uniform() < SHARE_AT_WORK) await Promise.race([ends, coordinator.working(LONGEST_START_MS)]);
      await Promise.race([ends, sleep(random.uniform() * LONGEST_GAP_MS)]);
      if (hasEnded) return;
      const fault = possible[Math.floor(random.uniform() * possible.length)]!;
      const { isWorking } = coordinator;
      const kind = await disturbance.during(() => fault(random));
      if (kind === undefined) continue;
      say(`seed ${seed} (${site.name}), fault ${++made}: ${kind}`);
      tally.made(kind, isWorking);
    }
  };
  const deadline = new AbortController();
  const tooLong = sleep(RUN_DEADLINE_MS, undefined, { signal: deadline.signal }).then(() => {
    throw new Error(`it did not end within ${RUN_DEADLINE_MS / 1000} s`);
  });
  try {
    await Promise.race([Promise.all([ends, nemesis()]), tooLong]);
    tally.runs++;
    await judge(site, run, { reference, kept, tally, seed });
  } catch (thrown) {
    tally.weightsEqual = false;
    tally.problems.push(`seed ${seed}: ${messageOf(thrown)}`);
  } finally {
    deadline.abort();
    tooLong.catch(() => undefined);
    for (const role of [coordinator, ...workers]) role.leave();
    await rm(run, { recursive: true, force: true });
  }
}

interface RoleParts extends Pick<Disturbed, 'say'> {
  readonly disturbance: Disturbance;
  readonly clocks: Clocks;
  readonly kept: Set<string>;
}

function rolesOf(site: Site, run: string, { disturbance, clocks, kept, say }: RoleParts) {
  const isDisturbed = disturbance.since;
  const command = (role: Role, args: readonly string[]): Command => {
    const { options = [], env = {} } = clocks.get(role) ?? {};
    clocks.delete(role);
    return { args, options, env: { ...envOf(site), ...env } };
  };
  const coordinator: Role = new Role({
    name: 'the coordinator',
    command: () => command(coordinator, trainCommand(site, run)),
    ...{ says: COORDINATOR_SAYS, isDisturbed },
    onEnd: async (how) => {
      say(`  the coordinator ended: ${how}`);
      // Killed before it was a run: nothing was begun, and the command asks for the directory to be removed.
      if (!existsSync(join(run, 'run.json'))) await rm(run, { recursive: true, force: true });
      else for (const id of await idsIn(site, run)) kept.add(id);
    },
  });
  const workers = Array.from({ length: site.workers }, (_, i) => {
    const args = ['worker', ...site.workerFlags(i), '--concurrency', '3', '--threads', '1', '--json'];
    const worker: Role = new Role({
      name: `worker ${i + 1}`,
      command: () => command(worker, args),
      ...{ says: WORKER_SAYS, isDisturbed },
      onEnd: async (how) => say(`  worker ${i + 1} ended: ${how}`),
    });
    return worker;
  });
  return { coordinator, workers };
}

async function idsIn(site: Site, run: string): Promise<readonly string[]> {
  try {
    await using store = await site.open(run);
    return (await store.summaries()).map(({ rolloutId }) => rolloutId);
  } catch {
    // Out of reach just now; a store that is damaged is found at the end.
    return [];
  }
}

/** The id that run.json gives the run: its name in a store of many runs. */
export const idOf = (run: string): string => (JSON.parse(readFileSync(join(run, 'run.json'), 'utf8')) as { id: string }).id;

interface Judged extends Pick<Disturbed, 'reference' | 'tally' | 'seed'> {
  readonly kept: ReadonlySet<string>;
}

async function judge(site: Site, run: string, { reference, kept, tally, seed }: Judged): Promise<void> {
  let result: Result;
  try {
    result = await resultIn(site, run);
  } catch (thrown) {
    tally.torn++;
    tally.problems.push(`seed ${seed}: ${messageOf(thrown)}`);
    return;
  }
  const found = compare(reference, result, kept);
  tally.lost += found.lost.length;
  tally.duplicated += found.duplicated.length;
  if (result.weights !== reference.weights) {
    tally.weightsEqual = false;
    tally.problems.push(`seed ${seed}: the weights are ${result.weights}, undisturbed ${reference.weights}`);
  }
  for (const kind of ['lost', 'duplicated'] as const) {
    for (const what of found[kind]) tally.problems.push(`seed ${seed}: ${kind}: ${what}`);
  }
}
