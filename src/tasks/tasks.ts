/**
 * Reads tasks from a JSONL, CSV or Parquet file, or from rows given as values. The same rows give the same tasks, whatever the source.
 * Problems are reported before anything runs, the first five together, with their places. Messages never quote a row, which may hold an
 * answer.
 */
import { hash } from 'node:crypto';
import { type FileHandle, stat } from 'node:fs/promises';
import { extname } from 'node:path';
import { getHeapStatistics } from 'node:v8';
import type { WarningCode } from '../core/error-codes.ts';
import type { Task } from '../core/types.ts';
import { givenRows, invalid, type RawRow, type TaskSource } from './rows.ts';
import { columnProblems, difference, type LabelPlace, labelPlaces, MetadataRules } from './rules.ts';
import { readCsv, readParquet, refuseTabs } from './tables.ts';
import { openTaskFile, readJsonl } from './task-file.ts';
import { contentHash, type ReadTask, type RowRead, taskOf } from './task-row.ts';

const SHOWN_PROBLEMS = 5;
/** Largest fraction of the free heap that tasks may take: a process that runs out of memory dies without a message. */
const MAX_SHARE_OF_HEAP = 0.6;
/** Heap that V8 reserves for young objects. */
const YOUNG_BYTES = 192 * 2 ** 20;
/** Per-task overhead besides its content: id and index entries. */
const BYTES_PER_TASK = 512;

export interface DatasetOptions {
  /** Throws DATASET_INVALID for fewer rows. */
  readonly minTasks?: number | undefined;
  /** Name in messages for rows that do not come from a file. */
  readonly name?: string | undefined;
}

export interface Dataset {
  readonly tasks: readonly Task[];
  readonly warnings: readonly { readonly code: WarningCode; readonly message: string }[];
}

export async function readTasks(source: TaskSource, options?: DatasetOptions): Promise<readonly Task[]> {
  return (await readDataset(source, options)).tasks;
}

export async function readDataset(
  source: TaskSource,
  { minTasks = 1, name = 'the list' }: DatasetOptions = {},
): Promise<Dataset> {
  const reading = new Reading(typeof source === 'string' ? source : name);
  for await (const raw of readRows(source)) {
    reading.take(raw);
    if (reading.isHopeless) break;
  }
  return reading.end(minTasks);
}

/** Yields raw rows with their places, before validation. */
export async function* readRows(source: TaskSource): AsyncGenerator<RawRow> {
  if (typeof source !== 'string') return yield* givenRows(source);
  await using file = await openTaskFile(source);
  const version = await versionOf(source);
  const extension = extname(source).toLowerCase();
  if (extension === '.tsv') refuseTabs(source);
  else if (extension === '.parquet') yield* readParquet(source);
  else yield* (extension === '.csv' ? readCsv : readJsonl)(chunksOf(file), source);
  if ((await versionOf(source)) === version) return;
  throw invalid(`${source} was changed while it was read`, { hint: 'run this again when nothing writes to the file' });
}

/** Changes when the file is written to, replaced or removed. */
async function versionOf(path: string): Promise<string> {
  const found = await stat(path, { bigint: true }).catch(() => undefined);
  return found === undefined ? 'gone' : `${found.ino} ${found.size} ${found.mtimeNs}`;
}

function chunksOf(file: FileHandle): AsyncIterable<Uint8Array> {
  return file.createReadStream({ start: 0, autoClose: false, highWaterMark: 2 ** 18 });
}

class Reading {
  readonly #name: string;
  readonly #tasks: Task[] = [];
  readonly #problems: string[] = [];
  readonly #places = new Map<string, string>();
  readonly #asked = new Map<string, number>();
  /** Places of duplicate rows, and of rows that reveal their answer. */
  readonly #copies: string[] = [];
  readonly #leaks: Readonly<Record<LabelPlace, string[]>> = { prompt: [], metadata: [], id: [] };
  readonly #maxBytes = memoryForTasks();
  #bytes = 0;
  #hasWrongColumns = false;
  #columns: ReadonlySet<string> | undefined;
  #rules: MetadataRules | undefined;

  constructor(name: string) {
    this.#name = name;
  }

  get isHopeless(): boolean {
    return this.#problems.length > SHOWN_PROBLEMS;
  }

  take(raw: RawRow): void {
    const { place } = raw;
    if (raw.kind === 'bad') return void this.#problems.push(`${place}${raw.problem}`);
    const read = this.#read(raw.row, place);
    if ('task' in read) {
      this.#weigh(read.task);
      this.#keep(read.task, place);
    } else this.#problems.push(...read.problems.slice(0, SHOWN_PROBLEMS + 1).map((problem) => `${place}: ${problem}`));
  }

  end(minTasks: number): Dataset {
    this.#throwProblems();
    const rows = this.#tasks.length;
    if (rows === 0) throw invalid(`${this.#name} holds no task`);
    if (rows < minTasks) {
      throw invalid(`${this.#name}: Dataset too small: ${rows} rows. A minimum of ${minTasks} rows is required.`, {
        hint: `add tasks, or allow so few with --min-tasks ${rows}`,
      });
    }
    return { tasks: this.#tasks, warnings: this.#warnings() };
  }

  #read(row: Readonly<Record<string, unknown>>, place: string): RowRead {
    const names = Object.keys(row);
    if (this.#columns === undefined) {
      this.#columns = new Set(names);
      if (names.includes('metadata')) this.#rules = new MetadataRules();
      const problems = columnProblems(names);
      this.#hasWrongColumns = problems.length > 0;
      if (problems.length > 0) return { problems };
    } else {
      // Reported once, for the first row.
      if (this.#hasWrongColumns) return { problems: [] };
      const problem = difference(names, this.#columns);
      if (problem !== undefined) return { problems: [problem] };
    }
    return taskOf(row, place, this.#rules);
  }

  #keep(read: ReadTask, place: string): void {
    const { id, ...rest } = read;
    const earlier = id === undefined ? undefined : this.#places.get(id);
    if (earlier !== undefined)
      return void this.#problems.push(`${place}: id ${JSON.stringify(id)} is already used on ${earlier}`);
    const hash = contentHash(rest);
    const copy = (this.#asked.get(hash) ?? 0) + 1;
    this.#asked.set(hash, copy);
    if (copy > 1) this.#copies.push(place);
    for (const where of labelPlaces(read)) this.#leaks[where].push(place);
    const task: Task = { id: id ?? this.#freeId(`row-${hash}`, copy), ...rest };
    this.#places.set(task.id, place);
    this.#tasks.push(task);
  }

  /** Numbers duplicates in row order. */
  #freeId(id: string, copy: number): string {
    for (let n = copy; ; n++) {
      const free = n === 1 ? id : `${id}#${n}`;
      if (!this.#places.has(free)) return free;
    }
  }

  #weigh({ prompt, answer, metadata }: ReadTask): void {
    this.#bytes += BYTES_PER_TASK + 2 * JSON.stringify([prompt, answer, metadata]).length;
    if (this.#bytes <= this.#maxBytes) return;
    const most = Math.round(this.#maxBytes / 2 ** 20);
    throw invalid(`${this.#name}: the first ${this.#tasks.length + 1} rows take more than ${most} MiB of memory`, {
      hint: 'all tasks are kept in memory: use fewer, keep large data in files that metadata names, or allow more with NODE_OPTIONS=--max-old-space-size=<MiB>',
    });
  }

  #throwProblems(): void {
    const [first] = this.#problems;
    if (first === undefined) return;
    if (this.#problems.length === 1) throw invalid(`${this.#name} ${first}`);
    const shown = this.#problems.slice(0, SHOWN_PROBLEMS).join('; ');
    throw invalid(`${this.#name}: ${shown}${this.isHopeless ? ` … (showing first ${SHOWN_PROBLEMS} errors)` : ''}`);
  }

  #warnings(): Dataset['warnings'] {
    const told = (code: WarningCode, [first, ...others]: readonly string[], what: string): Dataset['warnings'] => {
      const more = others.length;
      const rest = more === 0 ? '' : ` (and ${more} more ${more === 1 ? 'row' : 'rows'})`;
      return first === undefined ? [] : [{ code, message: `${this.#name} ${first}: ${what}${rest}` }];
    };
    const { prompt, metadata, id } = this.#leaks;
    return [
      ...told('LABEL_IN_PROMPT', prompt, 'the answer is in the prompt, where the agent reads it'),
      ...told('LABEL_IN_METADATA', metadata, 'the answer is in the metadata, where the agent reads it'),
      ...told('LABEL_IN_ID', id, 'the answer is in the id, where the agent reads it'),
      ...told('DUPLICATE_TASKS', this.#copies, 'it asks what an earlier row asks, which so counts more than once'),
    ];
  }
}

function memoryForTasks(): number {
  const { heap_size_limit: limit, used_heap_size: used } = getHeapStatistics();
  return Math.max(0, limit - used - YOUNG_BYTES) * MAX_SHARE_OF_HEAP;
}

// Held-out split. A hash of the task's content and the seed decides its side, so tasks added later move no others, and duplicates land on
// the same side.

export interface Split {
  readonly tasks: readonly Task[];
  readonly heldOut: readonly Task[];
}

/** `share` is between 0 and 1. Throws DATASET_INVALID if no task is held out, or fewer than `minTasks` are left to train on. */
export function splitTasks(
  all: readonly Task[],
  { share, seed, minTasks = 1 }: { readonly share: number; readonly seed: number; readonly minTasks?: number | undefined },
): Split {
  const { tasks = [], heldOut = [] } = Object.groupBy(all, (task) => (placeOf(task, seed) < share ? 'heldOut' : 'tasks'));
  if (tasks.length >= minTasks && heldOut.length > 0) return { tasks, heldOut };
  const left = tasks.length === 0 ? 'none' : tasks.length;
  const found = heldOut.length === 0 ? `none of ${all.length} tasks held out` : `${left} of ${all.length} tasks to train on`;
  throw invalid(`a split of ${share} leaves ${found}, expected at least ${heldOut.length === 0 ? 1 : minTasks}`, {
    hint: 'a task is held out by chance, with the seed: give another --split, more tasks, or a file with --held-out',
  });
}

/** Uniform in [0, 1). */
function placeOf(task: Task, seed: number): number {
  return hash('sha256', `${seed}/${contentHash(task)}`, 'buffer').readUIntBE(0, 6) / 2 ** 48;
}

export function seenInTraining({ tasks, heldOut }: Split): number {
  const asked = new Set(tasks.map(contentHash));
  return heldOut.filter((task) => asked.has(contentHash(task))).length;
}
