/**
 * Which functions, files and folders of src/ the work on one thing goes through: one rollout of one model call, the chat completion in it, its
 * grading, its `append` to the store; one JSONL row; one Tinker pass. A process of its own, because the tracer must come before src/. Prints one
 * JSON object for `npm run house`, or with `--walks` the folders of each walk in their order, and what it calls again and again.
 *
 * The first four are cut out of a training of the shop example, with the embedded policy, one thread and one rollout at a time, for its rollouts of
 * one call: the walk with the median number of calls, and between which numbers the others are. Calls vary with the words of the task and of the
 * answer; files and changes of folder vary when a timer comes in between. What runs in another process, such as the grader, is not seen.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { repository } from './sources.ts';
import { type Span, Trace, type Walk, walkOf } from './tracer.ts';

/** Where the walks begin and end: names of functions, wherever they are. Who renames one renames it here. */
const ROLLOUT = 'runRollout';
const PARTS_OF_ROLLOUT = { completion: 'Exchanges.take', grading: 'gradeOf', append: 'SqliteStore.append' } as const;

const EVALUATED = 24;
const COUNTS = ['calls', 'functions', 'files', 'folders', 'changes'] as const;
export type Range = readonly [least: number, most: number];

/** `of`: how many such walks there were; `ranges`: what varies among them. */
export interface MeasuredWalk extends Walk {
  readonly of: number;
  readonly ranges: Readonly<Partial<Record<(typeof COUNTS)[number], Range>>>;
}

export type Walks = Readonly<Record<'rollout' | keyof typeof PARTS_OF_ROLLOUT | 'row' | 'tinker', MeasuredWalk>>;

// The tracer comes before everything of src/, so this is imported late.
const trace = new Trace([ROLLOUT, ...Object.values(PARTS_OF_ROLLOUT)]);
const { train } = await import('trainyard');
const { readTasks } = await import('trainyard/loop');
const { REGULAR, randomSample } = await import('../fixtures/nn/models.ts');
const { passOf, scratch, serve } = await import('../fixtures/tinker/server.ts');
const { encodePassRequest } = await import('../../src/engines/tinker/wire/protobuf.ts');

function measured(walks: readonly Walk[]): MeasuredWalk {
  const median = walks.toSorted((a, b) => a.calls - b.calls)[walks.length >> 1]!;
  const ranges: Partial<Record<(typeof COUNTS)[number], Range>> = {};
  for (const count of COUNTS) {
    const values = walks.map((walk) => walk[count]);
    const range = [Math.min(...values), Math.max(...values)] as const;
    if (range[0] !== range[1]) ranges[count] = range;
  }
  return { ...median, of: walks.length, ranges };
}

/**
 * With tools, a grader in its own process and the store in a file. The rollouts are those of the evaluation before the first step: each has a task
 * that the policy did not see before, so nothing of it is remembered. A rollout's walk goes on to where the next one begins.
 */
async function rolloutWalks(folder: string): Promise<Pick<Walks, 'rollout' | keyof typeof PARTS_OF_ROLLOUT>> {
  const shop = join(repository, 'examples/shop');
  const heldOut = (await readTasks(join(shop, 'held-out.jsonl'))).slice(0, EVALUATED);
  await train({
    entry: join(shop, 'agent.ts'),
    tasks: join(shop, 'train.jsonl'),
    heldOut,
    run: join(folder, 'run'),
    steps: 1,
    group: 2,
    groupsPerStep: 1,
    refill: 1,
    concurrency: 1,
    threads: 1,
    graderWorkers: 1,
  });
  const starts = spansOf(ROLLOUT).map(({ first }) => first);
  // The first rollout loads and compiles things.
  const rollouts = starts.slice(1, heldOut.length - 1).map((start, i) => [start, starts[i + 2]!] as const);
  const ofOneCall = rollouts.filter((rollout) => spansIn(rollout, PARTS_OF_ROLLOUT.completion).length === 1);
  if (ofOneCall.length === 0)
    throw new Error('no rollout of the shop example has exactly one model call; give the walks another agent');
  const part = (name: string): MeasuredWalk =>
    measured(ofOneCall.map((rollout) => outermost(rollout, name)).map(({ first, end }) => walkOf(trace.calls.slice(first, end))));
  return {
    rollout: measured(ofOneCall.map(([start, end]) => walkOf(trace.calls.slice(start, end)))),
    completion: part(PARTS_OF_ROLLOUT.completion),
    grading: part(PARTS_OF_ROLLOUT.grading),
    append: part(PARTS_OF_ROLLOUT.append),
  };
}

function spansOf(name: string): readonly Span[] {
  const spans = trace.spans.filter(({ of }) => of.name === name);
  if (spans.length === 0)
    throw new Error(`no function ${name} was called; if it has another name now, give that to test/house/walks.ts`);
  return spans;
}

function spansIn([start, end]: Range, name: string): readonly Span[] {
  return spansOf(name).filter(({ first }) => first >= start && first < end);
}

/** Another function of that name may be called inside the first. */
function outermost(rollout: Range, name: string): Span {
  const [span] = spansIn(rollout, name);
  if (span === undefined)
    throw new Error(`a rollout of the shop example did not call ${name}; name what it calls instead in test/house/walks.ts`);
  return span;
}

/** Once to warm up, then what the second time calls. */
async function second(once: () => Promise<unknown>): Promise<MeasuredWalk> {
  await once();
  return measured([walkOf(await trace.during(once))]);
}

async function rowWalk(folder: string): Promise<MeasuredWalk> {
  const file = join(folder, 'one.jsonl');
  await writeFile(file, '{"id":"a","prompt":"Say 1.","answer":"1"}\n');
  return await second(() => readTasks(file));
}

async function tinkerWalk(): Promise<MeasuredWalk> {
  const home = await scratch();
  const served = await serve(home);
  const model = await served.client.model();
  const samples = [randomSample(REGULAR, 9, 1)];
  let seq = 0;
  const bodies = [1, 2].map((number) => encodePassRequest(passOf(model, number, samples)));
  const walk = await second(async () => {
    const sent = await served.client.send('forward_backward', bodies[seq++], { 'content-type': 'application/x-protobuf' });
    await served.client.protobufResult({ status: sent.status, json: (await sent.json()) as Record<string, unknown> });
  });
  await served.close();
  await home.remove();
  return walk;
}

async function allWalks(): Promise<Walks> {
  const folder = await mkdtemp(join(tmpdir(), 'trainyard-house-'));
  try {
    return { ...(await rolloutWalks(folder)), row: await rowWalk(folder), tinker: await tinkerWalk() };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function described(name: string, walk: MeasuredWalk): string {
  const { ranges, street, repeated } = walk;
  const counts = COUNTS.map((count) => {
    const range = ranges[count];
    return `${walk[count]} ${count}${range === undefined ? '' : ` (${range[0]} to ${range[1]})`}`;
  });
  const folders = street.map(([folder, calls]) => `${folder}(${calls})`).join(' ');
  const again = repeated.map(([called, times]) => `\n  ${`${times}`.padStart(4)}  ${called}`).join('');
  return `\n${name}, median of ${walk.of}: ${counts.join(', ')}\n  ${folders}${again}`;
}

const walks = await allWalks();
if (process.argv.includes('--walks')) for (const [name, walk] of Object.entries(walks)) console.log(described(name, walk));
else console.log(JSON.stringify(walks));
