/**
 * Small trainings under faults, one after another until so many faults were made, each compared with one that nobody disturbed: processes
 * killed with SIGKILL or stopped for a while, clocks that jump, a full disk, a store whose server dies or whose line fails. Every run must end,
 * with the same rollouts, steps and weights. A seed draws the same faults at the same times; what they hit depends on the machine's speed.
 */
import { hash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Store } from '../../src/core/contracts.ts';
import { messageOf } from '../../src/core/errors.ts';
import type { BatchManifest } from '../../src/core/types.ts';
import { randomStream } from '../../src/nn/random.ts';
import { scratch } from '../cli/command.ts';
import { type Command, Role } from './role.ts';
import { type SmallDisk, smallDisk } from './small-disk.ts';

export interface ChaosOptions {
  readonly seed: number;
  /** Made in all, over as many runs as it takes. */
  readonly faults: number;
  /** No run is begun after so many. */
  readonly minutes: number;
  readonly workers: number;
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
  readonly skipped: readonly string[];
  readonly problems: readonly string[];
}

const STEPS = 10;
const TASKS = 8;
const FAULTS_PER_RUN = 10;
/** A fault comes at most so long after the last one: some strike while a process starts, some in the steps after it. */
const LONGEST_GAP_MS = 1_800;
export const LONGEST_FAULT_MS = 1_200;
/** A run that takes longer hangs. */
const RUN_DEADLINE_MS = 180_000;
const DAY_MS = 86_400_000;

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

type Random = ReturnType<typeof randomStream>;

/** Something to do to a run; resolves when it is over. */
export interface Fault {
  readonly kind: string;
  /** False if there was nothing to do it to. */
  make(random: Random): Promise<boolean>;
}

/** Where the runs are and what keeps their records. */
export interface Site {
  readonly entry: string;
  readonly dir: string;
  readonly workers: number;
  readonly disk: SmallDisk | undefined;
  /** Flags of every command that needs the store. */
  readonly storeFlags: readonly string[];
  readonly faults: readonly Fault[];
  open(run: string): Promise<Store>;
}

/** What a run came to; nothing of it is about time. */
interface Result {
  readonly rollouts: readonly (readonly [id: string, content: string])[];
  readonly manifests: readonly BatchManifest[];
  readonly weights: string;
}

export async function chaos(options: ChaosOptions, site: Pick<Site, 'storeFlags' | 'faults' | 'open'>): Promise<ChaosOutcome> {
  const { seed, faults, minutes, workers, say } = options;
  const home = await scratch();
  const disk = smallDisk();
  const skipped = typeof disk === 'string' ? [`disk full: ${disk}`] : [];
  try {
    const entry = await home.write('agent.ts', ENTRY);
    const task = (_: unknown, i: number): string => JSON.stringify({ id: `t${i}`, prompt: `Question ${i}?`, answer: '' });
    await home.write('train.jsonl', Array.from({ length: TASKS }, task).join('\n'));
    const own = typeof disk === 'string' ? { dir: home.dir, disk: undefined } : { dir: disk.dir, disk };
    const place: Site = { ...site, ...own, entry, workers };
    const tally = new Tally();
    const reference = await undisturbed(place);
    const until = performance.now() + minutes * 60_000;
    for (let run = 0; tally.faults < faults && performance.now() < until; run++) {
      const left = Math.min(FAULTS_PER_RUN, faults - tally.faults);
      await disturbed(place, { seed: seed + run, faults: left, name: `run-${run}`, reference, tally, say });
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
  readonly kinds: Record<string, number> = {};
  readonly problems: string[] = [];

  made(kind: string): void {
    this.faults++;
    this.kinds[kind] = (this.kinds[kind] ?? 0) + 1;
  }

  outcome(): Omit<ChaosOutcome, 'seed' | 'skipped'> {
    const { faults, runs, lost, duplicated, torn, weightsEqual, kinds, problems } = this;
    return { faults, lost, duplicated, torn, weightsEqual, runs, kinds, problems };
  }
}

function commandOf({ entry, storeFlags }: Site, run: string): Command {
  const sizes = ['--groups-per-step', '2', '--group', '4', '--steps', `${STEPS}`, '--eval-every', '0', '--checkpoint-every', '2'];
  const begun = existsSync(join(run, 'run.json'));
  return { args: ['train', ...(begun ? ['--resume', run] : [entry, '--run', run, '--threads', '1', ...sizes]), ...storeFlags] };
}

async function undisturbed(site: Site): Promise<Result> {
  const run = join(site.dir, 'undisturbed');
  await new Role({ name: 'the undisturbed run', command: () => commandOf(site, run), isDisturbed: () => false }).toTheEnd();
  const result = await resultOf(site, run);
  if (result.manifests.length !== STEPS) throw new Error(`the undisturbed run made ${result.manifests.length} steps`);
  return result;
}

interface Disturbed {
  readonly seed: number;
  readonly faults: number;
  readonly name: string;
  readonly reference: Result;
  readonly tally: Tally;
  readonly say: (line: string) => void;
}

async function disturbed(site: Site, { seed, faults, name, reference, tally, say }: Disturbed): Promise<void> {
  const [run, random] = [join(site.dir, name), randomStream(seed)];
  /** What was on disk at some time. */
  const kept = new Set<string>();
  let [last, isUnderWay, hasEnded] = [0, false, false];
  /** Of the process that runs, and of the next one. */
  let [clock, nextClock]: [Partial<Command>, Partial<Command>] = [{}, {}];
  const isDisturbed = (since: number): boolean => isUnderWay || last >= since;
  const coordinator = new Role({
    name: 'the coordinator',
    command: () => ({ ...clock, ...commandOf(site, run) }),
    isDisturbed,
    onEnd: async (how) => {
      say(`  the coordinator ended: ${how}`);
      // Killed before it was a run: nothing was begun, and the command asks for the directory to be removed.
      if (!existsSync(join(run, 'run.json'))) await rm(run, { recursive: true, force: true });
      else for (const id of await idsIn(site, run)) kept.add(id);
      [clock, nextClock] = [nextClock, {}];
    },
  });
  const worker = (_: unknown, i: number): Role =>
    new Role({ name: `worker ${i + 1}`, command: () => ({ args: ['worker', ...site.storeFlags] }), isDisturbed });
  const workers = Array.from({ length: site.workers }, worker);
  const jump = (drawn: Random): void => {
    const off = (): number => Math.round((drawn.uniform() - 0.5) * 2 * DAY_MS);
    const env = { CHAOS_CLOCK: JSON.stringify([off(), Math.round(drawn.uniform() * LONGEST_GAP_MS), off()]) };
    nextClock = { options: ['--import', new URL('../fixtures/clock-jump.ts', import.meta.url).href], env };
  };
  const possible = [
    ...processFaults([coordinator, ...workers]),
    clockFault(coordinator, jump),
    ...diskFault(site.disk),
    ...site.faults,
  ];
  const ends = Promise.race([coordinator.toTheEnd(), ...workers.map((each) => each.toTheEnd())]).finally(() => {
    hasEnded = true;
  });
  const nemesis = async (): Promise<void> => {
    for (let made = 0; made < faults && !hasEnded; ) {
      await Promise.race([ends, sleep(random.uniform() * LONGEST_GAP_MS)]);
      const fault = possible[Math.floor(random.uniform() * possible.length)]!;
      if (hasEnded) return;
      isUnderWay = true;
      const wasMade = await fault.make(random);
      [isUnderWay, last] = [false, performance.now()];
      if (!wasMade) continue;
      say(`seed ${seed}, fault ${++made}: ${fault.kind}`);
      tally.made(fault.kind);
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

function processFaults(roles: readonly Role[]): readonly Fault[] {
  return roles.flatMap((role): readonly Fault[] => [
    { kind: `kill ${role.name.replace(/ \d+$/, '')}`, make: async () => role.signal('SIGKILL') },
    {
      kind: `stop ${role.name.replace(/ \d+$/, '')}`,
      make: async (random) => {
        if (!role.signal('SIGSTOP')) return false;
        await sleep(random.uniform() * LONGEST_FAULT_MS);
        return role.signal('SIGCONT');
      },
    },
  ]);
}

/** A process does not learn a new clock while it runs: it is killed, and the next one has it. */
function clockFault(coordinator: Role, jump: (random: Random) => void): Fault {
  return {
    kind: 'clock jump',
    make: async (random) => {
      jump(random);
      return coordinator.signal('SIGKILL');
    },
  };
}

function diskFault(disk: SmallDisk | undefined): readonly Fault[] {
  if (disk === undefined) return [];
  const make = async (random: Random): Promise<boolean> => {
    disk.fill();
    await sleep(random.uniform() * LONGEST_FAULT_MS);
    disk.free();
    return true;
  };
  return [{ kind: 'disk full', make }];
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

async function resultOf(site: Site, run: string): Promise<Result> {
  await using store = await site.open(run);
  const rollouts = (await store.query()).map(({ rolloutId, outcome, grade, turns }) => {
    const sampled = turns.map(({ sampledIds, logprobs, policyVersion }) => [policyVersion, [...sampledIds], [...logprobs]]);
    return [rolloutId, JSON.stringify([outcome, grade, sampled])] as const;
  });
  const checkpoints = (await readdir(join(run, 'checkpoints'))).toSorted();
  const folder = join(run, 'checkpoints', checkpoints.at(-1) ?? 'none');
  const files = (await readdir(folder)).filter((name) => name.endsWith('.safetensors')).toSorted();
  const weights = await Promise.all(files.map(async (name) => `${name} ${hash('sha256', await readFile(join(folder, name)))}`));
  return { rollouts, manifests: await store.manifests(), weights: [checkpoints.at(-1), ...weights].join() };
}

/** The id that run.json gives the run: its name in a store of many runs. */
export const idOf = (run: string): string => (JSON.parse(readFileSync(join(run, 'run.json'), 'utf8')) as { id: string }).id;

interface Judged extends Pick<Disturbed, 'reference' | 'tally' | 'seed'> {
  readonly kept: ReadonlySet<string>;
}

async function judge(site: Site, run: string, { reference, kept, tally, seed }: Judged): Promise<void> {
  let result: Result;
  try {
    result = await resultOf(site, run);
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

/** What is lost and what is there too often, beside the undisturbed run and what was kept before. */
export function compare(
  reference: Result,
  result: Result,
  kept: ReadonlySet<string>,
): Record<'lost' | 'duplicated', readonly string[]> {
  const [wanted, there] = [new Map(reference.rollouts), new Map(result.rollouts)];
  const trained = result.manifests.flatMap(({ rolloutIds }) => rolloutIds);
  const steps = result.manifests.map(({ step }) => `step ${step}`);
  const stepsOf = ({ step, rolloutIds }: BatchManifest): string => `step ${step}: ${rolloutIds.join()}`;
  const same = new Set(result.manifests.map(stepsOf));
  return {
    lost: [
      ...[...wanted].filter(([id, content]) => there.get(id) !== content).map(([id]) => id),
      ...[...kept, ...trained].filter((id) => !there.has(id)),
      ...reference.manifests.map(stepsOf).filter((step) => !same.has(step)),
    ],
    duplicated: [
      ...repeated(result.rollouts.map(([id]) => id)),
      ...repeated(trained),
      ...repeated(steps),
      ...[...there.keys()].filter((id) => !wanted.has(id)),
    ],
  };
}

const repeated = (ids: readonly string[]): readonly string[] => ids.filter((id, i) => ids.indexOf(id) !== i);
