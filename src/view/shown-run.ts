/**
 * One run as `trainyard view` shows it: reads its directory, also while the run goes on, and answers what api.ts says about a run. Holds the
 * list of rollouts in memory and reads single ones whole. Changes nothing but marks, as `trainyard curate` does. What is broken is a problem
 * of this run alone.
 */
import { existsSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Store } from '../core/contracts.ts';
import { messageOf, TrainyardError, tried } from '../core/errors.ts';
import type { RunEvent } from '../core/events.ts';
import { rowFilter } from '../core/filter.ts';
import { measuresOf, sortedBy } from '../core/listing.ts';
import { earnedBy } from '../core/reward.ts';
import { exclusionsIn, turnSummary, withoutExcluded } from '../core/turns.ts';
import type { Trajectory, Turn } from '../core/types.ts';
import { eventsFrom, isEvaluation, readRunFile } from '../run/directory.ts';
import { type CurationLine, curate, newMessages, RolloutIndex, type RolloutRow, rewrittenAt } from '../run/inspect.ts';
import { keptStore, openStoreOf } from '../run/run-store.ts';
import { shortPath } from '../settings/settings.ts';
import { isLocked } from '../store/files.ts';
import type { GroupView, MarkRequest, RolloutPage, RolloutView, RunInfo, TokenView, TurnView } from './api.ts';
import { tokenReader } from './token-view.ts';

/** Milliseconds that an answer waits for rollouts that are still being read. */
const PATIENCE = 150;
/** Milliseconds between two looks at the directory. */
const FRESH = 300;

interface ListQuery {
  readonly filter: string;
  readonly sort: string;
  readonly from: number;
  readonly count: number;
}

interface OpenStore {
  readonly store: Store;
  readonly index: RolloutIndex;
  /** The inode of the file, or the run's id in a database: another one means that the run began anew. */
  readonly origin: number | string;
}

/** What lists have in common while no rollout is added or marked: each order, and the last filter. */
interface Kept {
  readonly state: string;
  readonly sorted: Map<string, readonly RolloutRow[]>;
  list?: ReturnType<typeof measuresOf> & { readonly key: string; readonly matching: readonly RolloutRow[] };
}

export class ShownRun implements AsyncDisposable {
  readonly id: string;
  /** Of its directory; or its id, if there is only `store`. */
  readonly path: string;
  /** URL of its database, if one was given. */
  readonly store: string | undefined;
  readonly #storePath: string;
  #tokens: ReturnType<typeof tokenReader>;
  #open: OpenStore | undefined;
  #events: readonly RunEvent[] = [];
  #bytes = 0;
  #eventsInode: number | undefined;
  #looked = Number.NEGATIVE_INFINITY;
  #looking: Promise<void> = Promise.resolve();
  #kept: Kept = { state: '', sorted: new Map() };
  /** How often the run began anew since it is shown. */
  restarts = 0;

  constructor(id: string, path: string, store?: string) {
    this.id = id;
    this.path = path;
    this.store = store;
    this.#storePath = tried(() => statSync(path).isFile()) ? path : join(path, 'store.sqlite');
    this.#tokens = tokenReader(path);
  }

  async info(): Promise<RunInfo> {
    const known = { id: this.id, path: this.path, entry: null, model: null, startedAt: null, rollouts: 0, steps: 0 };
    try {
      const record = recordOf(this.path, this.#origin !== undefined);
      await this.look();
      const step = this.#events.findLast((event) => event.type === 'step-end' || event.type === 'sft-step');
      const steps = step !== undefined && 'step' in step ? step.step : 0;
      return { ...known, ...record, state: this.state(), rollouts: this.#open?.index.total ?? 0, steps };
    } catch (thrown) {
      return { ...known, kind: 'train', state: 'stopped', problem: messageOf(thrown) };
    }
  }

  state(): RunInfo['state'] {
    if (isLocked(this.path)) return 'running';
    const last = this.#events.findLast(({ type }) => /^(?:(?:run|eval|sft)-start|done|sft-end|error)$/.test(type));
    if (last?.type === 'error') return 'code' in last && last.code === 'CANCELLED' ? 'stopped' : 'failed';
    // A warm start within a training ends before it.
    const isDone = last?.type === 'done' || (last?.type === 'sft-end' && !this.#events.some(({ type }) => type === 'run-start'));
    return isDone ? 'done' : 'stopped';
  }

  /** As of the last look. */
  get events(): readonly RunEvent[] {
    return this.#events;
  }

  get rollouts(): number {
    return this.#open?.index.rows.length ?? 0;
  }

  /** Reads what is new, unless that was done a moment ago. Of a large store, the rest is read afterwards. */
  async look(): Promise<void> {
    if (performance.now() - this.#looked >= FRESH) {
      this.#readEvents();
      this.#looked = performance.now();
      this.#looking = this.#readStore();
    }
    await this.#looking;
  }

  async #readStore(): Promise<void> {
    const origin = this.#origin;
    if (this.#open !== undefined && this.#open.origin !== origin) await this.#forget();
    if (origin === undefined) return;
    const reading = (await this.#opened(origin)).index.update();
    reading.catch(() => {});
    await Promise.race([reading, sleep(PATIENCE, undefined, { ref: false })]);
  }

  async list({ filter, sort, from, count }: ListQuery): Promise<RolloutPage> {
    await this.look();
    const { rows = [], total = 0, version = 0 } = this.#open?.index ?? {};
    const state = `${version} ${this.restarts}`;
    if (this.#kept.state !== state) this.#kept = { state, sorted: new Map() };
    const sorted = this.#kept.sorted.get(sort) ?? sortedBy(rows, sort);
    this.#kept.sorted.set(sort, sorted);
    const key = JSON.stringify([filter, sort]);
    if (this.#kept.list?.key !== key) {
      const matching = sorted.filter(rowFilter(filter));
      this.#kept.list = { key, matching, ...measuresOf(matching) };
    }
    const { matching, meanReward, successes } = this.#kept.list;
    const shown = matching.slice(from, from + count);
    return { total, read: rows.length, matching: matching.length, meanReward, successes, from, rows: shown };
  }

  /** Everything that passes the filter, in append order: waits until all rollouts are read. */
  async matching(filter: string): Promise<readonly RolloutRow[]> {
    const passes = rowFilter(filter);
    await this.look();
    await this.#open?.index.update();
    return this.#open?.index.rows.filter(passes) ?? [];
  }

  async rollout(rolloutId: string): Promise<RolloutView> {
    return viewOf(...(await this.#read(rolloutId)));
  }

  async tokens(rolloutId: string): Promise<TokenView> {
    const [trajectory, { step }] = await this.#read(rolloutId);
    const { groupId, purpose } = trajectory;
    const { store } = await this.#rolloutStore();
    // Of a trained rollout, what its step left out; marks that came later changed nothing in it.
    const [manifest] = step === null ? [] : await store.manifests(step - 1);
    const excluded = manifest === undefined ? exclusionsIn(await store.marks()) : (manifest.excluded ?? []);
    const group = withoutExcluded(await store.query({ groupId, purpose }), excluded);
    return await this.#tokens(trajectory, group, step);
  }

  async group(groupId: string): Promise<GroupView> {
    const { store, index } = await this.#rolloutStore();
    const found = await store.query({ groupId });
    const [first] = found;
    if (first === undefined) throw this.#missing('group', groupId);
    const rewardOf = ({ row }: RolloutView): number => row.reward ?? Number.NEGATIVE_INFINITY;
    const rollouts = found.map((trajectory) => viewOf(trajectory, index.rowOf(trajectory)));
    const { taskId, purpose } = first;
    return { groupId, taskId, purpose, rollouts: rollouts.toSorted((a, b) => rewardOf(b) - rewardOf(a) || 0) };
  }

  async mark(request: MarkRequest): Promise<readonly CurationLine[]> {
    const { store, index } = await this.#rolloutStore();
    const lines = await curate(store, request);
    await index.join();
    return lines;
  }

  /** Rollouts that are still being read are left unread. */
  async [Symbol.asyncDispose](): Promise<void> {
    const open = this.#open;
    this.#open = undefined;
    await open?.store[Symbol.asyncDispose]();
  }

  #readEvents(): void {
    const inode = statSync(join(this.path, 'events.jsonl'), { throwIfNoEntry: false })?.ino;
    const isSame = inode === this.#eventsInode;
    const { events, end } = eventsFrom(this.path, isSame ? this.#bytes : 0);
    if (isSame && end >= this.#bytes) this.#events = events.length > 0 ? [...this.#events, ...events] : this.#events;
    else {
      if (this.#eventsInode !== undefined) this.restarts++;
      this.#events = isSame ? eventsFrom(this.path, 0).events : events;
    }
    this.#bytes = end;
    this.#eventsInode = inode;
  }

  /** Undefined while there is no store. */
  get #origin(): number | string | undefined {
    const { url = this.store, id = this.path } = keptStore(this.path);
    return url === undefined ? statSync(this.#storePath, { throwIfNoEntry: false })?.ino : id;
  }

  async #forget(): Promise<void> {
    this.restarts++;
    this.#tokens = tokenReader(this.path);
    await this[Symbol.asyncDispose]();
  }

  async #opened(origin: number | string): Promise<OpenStore> {
    if (this.#open === undefined) {
      const store = await openStoreOf(this.path, { store: this.store });
      this.#open = { store, index: new RolloutIndex(store), origin };
    }
    return this.#open;
  }

  async #rolloutStore(): Promise<OpenStore> {
    await this.look();
    if (this.#open !== undefined) return this.#open;
    throw new TrainyardError('FILE_NOT_FOUND', `${this.path} holds no rollouts`);
  }

  async #read(rolloutId: string): Promise<[Trajectory, RolloutRow]> {
    const { store, index } = await this.#rolloutStore();
    const trajectory = await store.read(rolloutId);
    if (trajectory === undefined) throw this.#missing('rollout', rolloutId);
    return [trajectory, index.rowOf(trajectory)];
  }

  #missing(what: string, id: string): TrainyardError {
    return new TrainyardError('FILE_NOT_FOUND', `${this.path} holds no ${what} ${JSON.stringify(id.slice(0, 200))}`);
  }
}

/** Throws if there is no run. */
function recordOf(path: string, hasStore: boolean): Pick<RunInfo, 'kind' | 'entry' | 'model' | 'startedAt'> {
  const startedAt = statSync(join(path, 'lock'), { throwIfNoEntry: false })?.birthtimeMs || null;
  if (!existsSync(join(path, 'run.json')) && hasStore) return { kind: 'serve', entry: null, model: null, startedAt };
  const record = readRunFile(path, 'FILE_NOT_FOUND') as { kind?: unknown; settings?: Record<string, unknown> };
  const named = (value: unknown): string | null => (typeof value === 'string' ? shortPath(value) : null);
  const kind = record.kind === 'sft' ? 'sft' : isEvaluation(record) ? 'eval' : 'train';
  return { kind, entry: named(record.settings?.['entry']), model: named(record.settings?.['model']), startedAt };
}

function viewOf(trajectory: Trajectory, row: RolloutRow): RolloutView {
  const { outcome, grade, output, metadata, metrics, turns, unanswered = [], logs = [], startedAt } = trajectory;
  const given = { ...(output !== undefined && { output }), ...(metadata && { metadata }), ...(metrics && { metrics }) };
  return {
    row,
    outcome,
    grade,
    ...given,
    turns: turns.map((turn) => turnOf(turn, trajectory, row)),
    unanswered,
    logs,
    startedAt,
  };
}

function turnOf(turn: Turn, trajectory: Trajectory, row: RolloutRow): TurnView {
  const { grade, turns } = trajectory;
  const isByPart = grade.kind === 'graded' && ['byTurn', 'byThread', 'byRole'].some((part) => part in grade.reward);
  return {
    ...turnSummary(turn),
    prompt: newMessages(turn, turns),
    rewritten: rewrittenAt(turn, turns),
    tools: turn.request.tools,
    excluded: row.excludedTurns[turn.index] ?? row.excluded,
    reward: isByPart ? (earnedBy(trajectory, turn)?.reward ?? null) : null,
  };
}
