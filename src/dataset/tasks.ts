/**
 * Tasks, from a JSONL, CSV or Parquet file or from the rows themselves: the same rows are the same tasks, whatever they were read from.
 *
 * Everything wrong is found before anything runs, and told together: the first five, with their places. A message never holds the text of
 * a row, which may be an answer.
 */
import { extname } from 'node:path';
import { messageOf, TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { columnProblems, difference } from './columns.ts';
import { readCsv } from './csv.ts';
import { openDataFile } from './data-file.ts';
import { readJsonl } from './jsonl.ts';
import { isLabelInPrompt } from './labels.ts';
import { MetadataRules } from './metadata.ts';
import { readParquet } from './parquet.ts';
import { contentHash } from './row-id.ts';
import { invalid, isRecord, kindOf, MAX_ROWS, type RawRow, type TaskSource } from './rows.ts';
import { type ReadTask, taskOf } from './task-row.ts';

const SHOWN_PROBLEMS = 5;

export interface DatasetOptions {
  /** Fewer rows are refused. */
  readonly minTasks?: number | undefined;
  /** What rows that come from no file are called in messages. */
  readonly name?: string | undefined;
}

export interface Dataset {
  readonly tasks: readonly Task[];
  /** What a person should know about them. */
  readonly warnings: readonly { readonly code: string; readonly message: string }[];
}

export async function readTasks(source: TaskSource, options?: DatasetOptions): Promise<readonly Task[]> {
  return (await readDataset(source, options)).tasks;
}

export async function readDataset(
  source: TaskSource,
  { minTasks = 1, name = 'the list' }: DatasetOptions = {},
): Promise<Dataset> {
  const isFile = typeof source === 'string';
  const reading = new Reading(isFile ? source : name, !isFile);
  for await (const raw of readRows(source)) {
    reading.take(raw);
    if (reading.isHopeless) break;
  }
  return reading.end(minTasks);
}

/** The rows as they are, with their places, before anything is made of them. */
export async function* readRows(source: TaskSource): AsyncGenerator<RawRow> {
  if (typeof source !== 'string') return yield* rowsOf(source);
  await using file = await openDataFile(source);
  const extension = extname(source).toLowerCase();
  if (extension === '.parquet') yield* readParquet(file);
  else if (extension === '.csv') yield* readCsv(file.chunks(), source);
  else yield* readJsonl(file.chunks(), source);
}

async function* rowsOf(source: Exclude<TaskSource, string>): AsyncGenerator<RawRow> {
  let number = 0;
  try {
    for await (const row of source as AsyncIterable<unknown>) {
      const place = `row ${++number}`;
      if (number > MAX_ROWS) throw invalid(`found more than ${MAX_ROWS} rows`, { hint: 'does the source ever end?' });
      if (!isRecord(row)) yield { kind: 'bad', place, problem: `: expected an object, found ${kindOf(row)}` };
      // A field given as undefined is one that was not given.
      else yield { kind: 'row', place, row: Object.fromEntries(Object.entries(row).filter(([, value]) => value !== undefined)) };
    }
  } catch (thrown) {
    if (thrown instanceof TrainyardError) throw thrown;
    throw invalid(`the source of tasks threw after ${number} rows: ${messageOf(thrown)}`, { cause: thrown });
  }
}

class Reading {
  readonly #name: string;
  /** Whether the rows belong to somebody who may change them later. */
  readonly #isForeign: boolean;
  readonly #tasks: Task[] = [];
  readonly #problems: string[] = [];
  readonly #places = new Map<string, string>();
  readonly #copies = new Map<string, number>();
  readonly #leaks: string[] = [];
  #hasWrongColumns = false;
  #columns: ReadonlySet<string> | undefined;
  #rules: MetadataRules | undefined;

  constructor(name: string, isForeign: boolean) {
    this.#name = name;
    this.#isForeign = isForeign;
  }

  /** Whether there are more problems than are shown. */
  get isHopeless(): boolean {
    return this.#problems.length > SHOWN_PROBLEMS;
  }

  take(raw: RawRow): void {
    const { place } = raw;
    if (raw.kind === 'bad') return void this.#problems.push(`${place}${raw.problem}`);
    const read = this.#read(raw.row, place);
    if ('task' in read) this.#keep(read.task, place);
    else this.#problems.push(...read.problems.map((problem) => `${place}: ${problem}`));
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

  #read(row: Readonly<Record<string, unknown>>, place: string): ReturnType<typeof taskOf> {
    const names = Object.keys(row);
    if (this.#columns === undefined) {
      this.#columns = new Set(names);
      if (names.includes('metadata')) this.#rules = new MetadataRules();
      const problems = columnProblems(names);
      this.#hasWrongColumns = problems.length > 0;
      if (problems.length > 0) return { problems };
    } else {
      const problem = difference(names, this.#columns);
      if (problem !== undefined) return { problems: [problem] };
      // Said once, of the first row.
      if (this.#hasWrongColumns) return { problems: [] };
    }
    return taskOf({ row, place, rules: this.#rules });
  }

  #keep(read: ReadTask, place: string): void {
    const { id, ...rest } = read;
    const earlier = id === undefined ? undefined : this.#places.get(id);
    if (earlier !== undefined)
      return void this.#problems.push(`${place}: id ${JSON.stringify(id)} is already used on ${earlier}`);
    const named: Task = { id: id ?? this.#freeId(`row-${contentHash(rest)}`), ...rest };
    const task = this.#isForeign ? ownCopy(named) : named;
    this.#places.set(task.id, place);
    this.#tasks.push(task);
    if (isLabelInPrompt(task)) this.#leaks.push(place);
  }

  /** Rows that ask the same are told apart by their order. */
  #freeId(id: string): string {
    for (;;) {
      const copy = (this.#copies.get(id) ?? 0) + 1;
      this.#copies.set(id, copy);
      const free = copy === 1 ? id : `${id}#${copy}`;
      if (!this.#places.has(free)) return free;
    }
  }

  #throwProblems(): void {
    const [first] = this.#problems;
    if (first === undefined) return;
    if (this.#problems.length === 1) throw invalid(`${this.#name} ${first}`);
    const shown = this.#problems.slice(0, SHOWN_PROBLEMS).join('; ');
    throw invalid(`${this.#name}: ${shown}${this.isHopeless ? ` … (showing first ${SHOWN_PROBLEMS} errors)` : ''}`);
  }

  #warnings(): Dataset['warnings'] {
    const [first] = this.#leaks;
    if (first === undefined) return [];
    const rows = this.#leaks.length === 1 ? '' : `, and of ${this.#leaks.length - 1} more rows`;
    const message = `${this.#name} ${first}: the answer is in the prompt, where the agent reads it${rows}`;
    return [{ code: 'LABEL_IN_PROMPT', message }];
  }
}

/** Of what is known to be JSON. */
function ownCopy(task: Task): Task {
  return JSON.parse(JSON.stringify(task)) as Task;
}
