/**
 * Groups of trajectories for whoever trains somewhere else: kept as they end, handed out when enough of a group have ended.
 *
 * What was acknowledged is in the store. A batch is a manifest there, written before it is handed out: so no trajectory is in two of them, also
 * after a kill. Asked for again under its own id a batch is the same one again, so that an answer that got lost is not. What is marked as
 * excluded is not handed out. A trajectory whose group was handed out or dropped comes too late: it is refused, counted, and not kept.
 *
 * Groups wait in the order their first trajectory was kept; one that is not complete holds up nobody. When no more groups may wait, the oldest
 * that is excluded whole makes room, else the oldest that is not complete, never one that could be handed out. Does not compute advantages.
 */
import { randomUUID } from 'node:crypto';
import { deadlineSignal, Mutex, orAborted } from '../core/async.ts';
import type { Clock, Store } from '../core/contracts.ts';
import { earnedBy } from '../core/reward.ts';
import { exclusionsIn, exclusionsOf, withoutExcluded } from '../core/turns.ts';
import type { BatchManifest, Exclusion, Purpose, StaleRule, Trajectory, Turn } from '../core/types.ts';
import { invalid } from '../gateway/dialects/dialect.ts';
import { flowRefusal } from './flow-protocol.ts';

export interface GroupPoolOptions {
  readonly store: Store;
  readonly clock: Clock;
  /** Trajectories that must have ended before a group is complete, where whoever fetches says nothing else. */
  readonly group: number;
  /** Groups of a channel that may wait; absent: any number. */
  readonly maxGroups?: number | undefined;
  /** After this time a group is handed out with what it has, or dropped where that is nothing; absent: never. */
  readonly groupTimeoutMs?: number | undefined;
}

export interface FetchRequest {
  readonly purpose: Purpose;
  /** Complete groups that are wanted. */
  readonly groups: number;
  /** Trajectories that must have ended in each. */
  readonly n?: number | undefined;
  readonly stale?: StaleRule | undefined;
  /** Of the batch: the same again gives the same again. */
  readonly batchId?: string | undefined;
}

export interface ServedBatch {
  readonly batchId: string;
  /** Sorted by trajectory and index. */
  readonly steps: readonly ServedStep[];
}

/** `waiting`: the signal came first. `closed`: nothing will come any more. */
export type Fetched = ({ readonly kind: 'batch' } & ServedBatch) | { readonly kind: 'waiting' | 'closed' };

interface WaitingGroup {
  readonly groupId: string;
  readonly purpose: Purpose;
  /** When its first trajectory ended, milliseconds since the epoch. */
  readonly since: number;
  /** Trajectories that ended, and whether there is something to train in them. */
  readonly members: Map<string, boolean>;
  /** Trajectories that are being written. While there are any the group is not handed out. */
  entering: number;
  /** Whether marks excluded all that could be handed out of it, when somebody last asked. */
  held: boolean;
}

/** `kept` is always what waits, was served, left out or dropped, together. */
const NONE = {
  kept: 0,
  served: 0,
  /** Of groups that were handed out: failed, not graded, excluded, or with nothing left to train. */
  leftOut: 0,
  dropped: 0,
  /** Not kept: they came after their group was closed, or there was no room. */
  late: 0,
  refused: 0,
  servedGroups: 0,
  droppedGroups: 0,
  servedSteps: 0,
  /** Of batches: too old, and so left out, or weighed. */
  staleSteps: 0,
};
type Counts = Record<keyof typeof NONE, number>;

/** A group that may be handed out, and its rows. */
interface Picked extends ServedSteps {
  readonly group: WaitingGroup;
}

type Identity = Pick<Trajectory, 'groupId' | 'purpose'>;

const nameOf = ({ purpose, groupId }: Identity): string => `${purpose} ${groupId}`;

const DROPPED = 'its group was dropped: ';

/** A fetch looks again after this time in any case: a mark that is taken back tells nobody. Milliseconds. */
const LONGEST_WAIT = 1000;

export class GroupPool {
  readonly #options: GroupPoolOptions & { readonly maxGroups: number; readonly groupTimeoutMs: number };
  /** In line. */
  readonly #waiting = new Map<string, WaitingGroup>();
  readonly #closed = new Set<string>();
  readonly #counts: Readonly<Record<Purpose, Counts>> = { train: { ...NONE }, eval: { ...NONE } };
  readonly #known = new Set<string>();
  readonly #batches = new Map<string, BatchManifest>();
  #lastStep = { step: 0, policyVersion: 0 };
  #isClosing = false;
  #change = Promise.withResolvers<void>();
  /** Batches are made one after the other. */
  readonly #batching = new Mutex();

  private constructor({ maxGroups = Infinity, groupTimeoutMs = Infinity, ...options }: GroupPoolOptions) {
    this.#options = { ...options, maxGroups, groupTimeoutMs };
  }

  /** With what the store holds: groups wait that waited, and those that were handed out or dropped are closed. */
  static async open(options: GroupPoolOptions): Promise<GroupPool> {
    const pool = new GroupPool(options);
    const { store } = options;
    const manifests = await store.manifests();
    for (const manifest of manifests) pool.#remember(manifest);
    for (const trajectory of await store.query()) pool.#enter(trajectory);
    const served = new Set(manifests.flatMap(({ rolloutIds }) => rolloutIds));
    const drops = exclusionsIn(await store.marks()).filter(({ reason }) => reason.startsWith(DROPPED));
    const dropped = new Set(drops.map(({ rolloutId }) => rolloutId));
    // One member that was handed out closes its group; it is dropped where all of them were.
    for (const group of [...pool.#waiting.values()]) {
      const ids = [...group.members.keys()];
      if (ids.some((id) => served.has(id))) pool.#closeServed(group, served);
      else if (ids.every((id) => dropped.has(id))) pool.#closeDropped(group);
    }
    return pool;
  }

  /** Throws group_closed or pool_full, and counts it, where a trajectory of this group would not be kept. */
  admit({ rolloutId, ...identity }: Identity & Pick<Trajectory, 'rolloutId'>): void {
    const { groupId, purpose } = identity;
    if (this.#known.has(rolloutId)) return;
    if (this.#closed.has(nameOf(identity))) {
      this.#counts[purpose].late++;
      const hint = 'it comes too late and is not kept; use a new prompt_uid';
      throw flowRefusal('group_closed', `group ${groupId} was handed out or dropped before`, { hint, param: 'prompt_uid' });
    }
    const hasPlace = this.#waiting.has(nameOf(identity)) || this.#in(purpose).length < this.#options.maxGroups;
    if (hasPlace || this.#evictable(purpose) !== undefined) return;
    this.#counts[purpose].refused++;
    throw flowRefusal('pool_full', `there is no room for group ${groupId}: others wait to be fetched`, {
      hint: 'send it again when groups were fetched',
    });
  }

  /** Durable when it resolves. Throws as `admit` does. */
  async keep(trajectory: Trajectory): Promise<void> {
    const { store } = this.#options;
    // The same once more: the store knows.
    if (this.#known.has(trajectory.rolloutId)) return await store.append(trajectory);
    // While a batch is made nobody enters its groups; while somebody enters a group it is in no batch.
    const group = await this.#batching.run(() => this.#letIn(trajectory));
    try {
      await store.append(trajectory);
      this.#enter(trajectory);
    } finally {
      group.entering--;
      if (group.members.size === 0 && group.entering === 0) this.#waiting.delete(nameOf(group));
      this.#changed();
    }
  }

  async #letIn(trajectory: Trajectory): Promise<WaitingGroup> {
    this.admit(trajectory);
    const evicted = this.#waiting.has(nameOf(trajectory)) ? undefined : this.#evictable(trajectory.purpose);
    if (evicted !== undefined) await this.#drop(evicted, 'it was not complete when others needed its place');
    const group = this.#groupOf(trajectory);
    group.entering++;
    return group;
  }

  /** Waits until there are as many complete groups as are wanted. After `close` there may be fewer. */
  async fetch(request: FetchRequest, signal: AbortSignal): Promise<Fetched> {
    const { maxGroups, groupTimeoutMs, clock } = this.#options;
    if (request.groups > maxGroups) throw invalid('groups', `expected at most ${maxGroups}: no more may wait`);
    for (;;) {
      const change = this.#change.promise;
      const batch = await this.#batching.run(() => this.#take(request));
      if (batch !== undefined) return { kind: 'batch', ...batch };
      if (this.#isClosing) return { kind: 'closed' };
      if (signal.aborted) return { kind: 'waiting' };
      const timeouts = this.#in(request.purpose).map(({ since }) => since + groupTimeoutMs - clock.now());
      using wait = deadlineSignal(Math.min(LONGEST_WAIT, ...timeouts.filter((ms) => ms > 0)), () => undefined, signal);
      await orAborted(change, wait.signal).catch(() => undefined);
    }
  }

  /** Complete groups are still handed out; whoever waits for more is told that nothing comes. */
  close(): void {
    this.#isClosing = true;
    this.#changed();
  }

  counts(purpose: Purpose): Readonly<Counts & Record<'waiting' | 'waitingGroups' | 'readyGroups', number>> {
    const groups = this.#in(purpose);
    return {
      ...this.#counts[purpose],
      waiting: groups.reduce((sum, { members }) => sum + members.size, 0),
      waitingGroups: groups.length,
      readyGroups: groups.filter((group) => this.#isComplete(group)).length,
    };
  }

  async #take(request: FetchRequest): Promise<ServedBatch | undefined> {
    const known = request.batchId === undefined ? undefined : this.#batches.get(request.batchId);
    if (known !== undefined) return await this.#again(known, request.purpose);
    const isEnough = ({ length }: readonly unknown[]): boolean => length >= (this.#isClosing ? 1 : request.groups);
    const complete = this.#in(request.purpose).filter((group) => this.#isComplete(group, request.n));
    if (!isEnough(complete)) return undefined;
    const members = new Set(complete.flatMap((group) => [...group.members.keys()]));
    const exclusions = exclusionsOf(members, await this.#options.store.marks());
    const picks: Picked[] = [];
    for (const group of complete) {
      if (picks.length === request.groups) break;
      const pick = await this.#pick(group, exclusions, request.stale);
      if (pick !== undefined) picks.push(pick);
    }
    return isEnough(picks) ? await this.#handOut(picks, exclusions, request) : undefined;
  }

  /** Undefined where there is nothing in it to train: then it is dropped, unless somebody may take back a mark. */
  async #pick(group: WaitingGroup, exclusions: readonly Exclusion[], rule: StaleRule | undefined): Promise<Picked | undefined> {
    const trajectories = await this.#read([...group.members].flatMap(([id, hasSteps]) => (hasSteps ? [id] : [])));
    const { steps, stale } = servedSteps(withoutExcluded(trajectories, exclusions), rule);
    group.held = steps.length === 0 && exclusions.some(({ rolloutId }) => group.members.has(rolloutId));
    if (steps.length > 0) return { group, steps, stale };
    if (group.held) return undefined;
    this.#counts[group.purpose].staleSteps += stale;
    await this.#drop(group, stale > 0 ? 'all of it was sampled too long ago' : 'nothing in it can be trained');
    return undefined;
  }

  async #handOut(picks: readonly Picked[], exclusions: readonly Exclusion[], request: FetchRequest): Promise<ServedBatch> {
    const { store, clock } = this.#options;
    const { batchId = randomUUID(), stale, purpose } = request;
    const steps = inOrder(picks.flatMap((pick) => pick.steps));
    const ids = new Set(picks.flatMap(({ group }) => [...group.members.keys()]));
    const excluded = exclusions.filter(({ rolloutId }) => ids.has(rolloutId));
    const manifest: BatchManifest = {
      step: this.#lastStep.step + 1,
      policyVersion: this.#lastStep.policyVersion + 1,
      rolloutIds: [...new Set(steps.map(({ rolloutId }) => rolloutId))].toSorted(),
      ...(excluded.length === 0 ? {} : { excluded }),
      batchId,
      ...(stale === undefined ? {} : { stale }),
      checkpoint: null,
      groups: { next: 1, pending: [] },
      metrics: { groups: picks.length, steps: steps.length },
      createdAt: clock.now(),
    };
    await store.commit(manifest);
    this.#remember(manifest);
    const served = new Set(manifest.rolloutIds);
    for (const pick of picks) {
      this.#closeServed(pick.group, served);
      this.#counts[purpose].servedSteps += pick.steps.length;
      this.#counts[purpose].staleSteps += pick.stale;
    }
    return { batchId, steps };
  }

  /** By the rule it was made by: what is stale now was handed out then. Throws batch_conflict. */
  async #again({ rolloutIds, excluded = [], batchId = '', stale }: BatchManifest, purpose: Purpose): Promise<ServedBatch> {
    const trajectories = await this.#read(rolloutIds);
    if (trajectories.some((one) => one.purpose !== purpose)) {
      const hint = 'name batches of each channel apart';
      throw flowRefusal('batch_conflict', `batch ${batchId} is of the other channel`, { hint, param: 'batch_id' });
    }
    return { batchId, steps: servedSteps(withoutExcluded(trajectories, excluded), stale).steps };
  }

  async #read(ids: readonly string[]): Promise<readonly Trajectory[]> {
    const read = await Promise.all(ids.map((id) => this.#options.store.read(id)));
    return read.filter((one) => one !== undefined);
  }

  async #drop(group: WaitingGroup, why: string): Promise<void> {
    const { store, clock } = this.#options;
    this.#closeDropped(group);
    const mark = { excluded: true, reason: `${DROPPED}${why}`, at: clock.now() };
    await store.mark([...group.members.keys()].map((rolloutId) => ({ rolloutId, ...mark })));
  }

  #closeDropped(group: WaitingGroup): void {
    this.#close(group);
    this.#counts[group.purpose].droppedGroups++;
    this.#counts[group.purpose].dropped += group.members.size;
  }

  #closeServed(group: WaitingGroup, served: ReadonlySet<string>): void {
    const taken = [...group.members.keys()].filter((id) => served.has(id)).length;
    const counts = this.#counts[group.purpose];
    this.#close(group);
    counts.servedGroups++;
    counts.served += taken;
    counts.leftOut += group.members.size - taken;
  }

  #close(group: WaitingGroup): void {
    this.#waiting.delete(nameOf(group));
    this.#closed.add(nameOf(group));
  }

  #enter(trajectory: Trajectory): void {
    const { rolloutId, purpose, outcome, grade } = trajectory;
    const isEnded = outcome.kind === 'completed' || outcome.kind === 'truncated';
    this.#groupOf(trajectory).members.set(rolloutId, isEnded && grade.kind === 'graded');
    // The same trajectory may arrive twice at once; it is one.
    if (!this.#known.has(rolloutId)) this.#counts[purpose].kept++;
    this.#known.add(rolloutId);
  }

  /** At the end of the line where it is new. */
  #groupOf({ groupId, purpose, endedAt: since }: Trajectory): WaitingGroup {
    const name = nameOf({ groupId, purpose });
    const group = this.#waiting.get(name) ?? { groupId, purpose, since, members: new Map(), entering: 0, held: false };
    this.#waiting.set(name, group);
    return group;
  }

  #remember(manifest: BatchManifest): void {
    const { step, policyVersion, batchId } = manifest;
    this.#lastStep = { step, policyVersion };
    if (batchId !== undefined) this.#batches.set(batchId, manifest);
  }

  #in(purpose: Purpose): readonly WaitingGroup[] {
    return [...this.#waiting.values()].filter((group) => group.purpose === purpose);
  }

  #isComplete({ entering, members, since }: WaitingGroup, n: number = this.#options.group): boolean {
    const { clock, groupTimeoutMs } = this.#options;
    return entering === 0 && members.size > 0 && (members.size >= n || clock.now() - since >= groupTimeoutMs);
  }

  /** Undefined where there is room, or every group is complete. What marks hold back may stay, but not at the cost of what can be trained. */
  #evictable(purpose: Purpose): WaitingGroup | undefined {
    const groups = this.#in(purpose);
    if (groups.length < this.#options.maxGroups) return undefined;
    const idle = groups.filter(({ entering }) => entering === 0);
    return idle.find(({ held }) => held) ?? idle.find((group) => !this.#isComplete(group));
  }

  #changed(): void {
    this.#change.resolve();
    this.#change = Promise.withResolvers<void>();
  }
}

// ── rows of a batch ───────────────────────────────────────────────────────────────────────────────────────────────────────

// One row for each trained turn. A turn that was sampled too many policy versions ago is left out, or counts half as much for each version
// too many.

export interface ServedStep {
  readonly groupId: string;
  readonly rolloutId: string;
  /** Among the trained turns of its trajectory, from 0. */
  readonly index: number;
  readonly isLast: boolean;
  readonly turn: Turn;
  /** What the turn earned, and the trajectory as a whole. */
  readonly reward: number;
  readonly value: number;
  /** 1, or less where it is stale. */
  readonly weight: number;
}

interface ServedSteps {
  readonly steps: readonly ServedStep[];
  /** Turns that were too old, left out or weighed. */
  readonly stale: number;
}

function servedSteps(trajectories: readonly Trajectory[], rule?: StaleRule): ServedSteps {
  const rows = trajectories.flatMap((trajectory) => stepsOf(trajectory, rule));
  return {
    steps: inOrder(rows.filter(({ weight }) => weight > 0)),
    stale: rows.filter(({ weight }) => weight < 1).length,
  };
}

/** By trajectory and index, whenever they came. */
function inOrder(steps: readonly ServedStep[]): readonly ServedStep[] {
  return steps.toSorted((a, b) => (a.rolloutId === b.rolloutId ? a.index - b.index : a.rolloutId < b.rolloutId ? -1 : 1));
}

/** Numbered before anything stale is left out: an index names the same turn whoever asks when. */
function stepsOf(trajectory: Trajectory, rule: StaleRule | undefined): readonly ServedStep[] {
  const { groupId, rolloutId, grade } = trajectory;
  if (grade.kind !== 'graded') return [];
  const { value } = grade.reward;
  const turns = trajectory.turns.toSorted((a, b) => a.index - b.index);
  const trained = turns.flatMap((turn) => {
    const earned = earnedBy(trajectory, turn);
    return earned === undefined ? [] : [{ turn, reward: earned.reward, weight: weightOf(turn, rule) }];
  });
  return trained.map((one, index) => ({ ...one, groupId, rolloutId, index, isLast: index === trained.length - 1, value }));
}

function weightOf({ policyVersion }: Turn, rule: StaleRule | undefined): number {
  const tooMany = rule === undefined ? 0 : rule.policyVersion - policyVersion - rule.most;
  if (tooMany <= 0) return 1;
  return rule?.rule === 'weigh' ? 0.5 ** tooMany : 0;
}
