/**
 * Groups of trajectories for an external trainer: stored as they end, handed out once a group is complete. Does not compute advantages.
 *
 * Acknowledged trajectories are in the store. A batch is a manifest there, written before it is handed out, so a trajectory is never in two
 * batches, even after a kill. Fetching one of the last thousand batch ids again returns the same batch. Excluded trajectories are not handed out. A trajectory
 * whose group is already handed out or dropped is refused, counted as late, and not stored.
 *
 * Memory holds waiting groups and the last batches; whether a trajectory is known and a group closed is looked up in the store.
 *
 * Groups queue by their first stored trajectory; incomplete ones do not block later ones. At the limit, the oldest fully excluded group is
 * evicted, else the oldest incomplete one, never one that could be handed out.
 */
import { randomUUID } from 'node:crypto';
import { deadlineSignal, Mutex, orAborted } from '../../core/async.ts';
import type { Clock, Store } from '../../core/contracts.ts';
import { earnedBy } from '../../core/reward.ts';
import { exclusionsIn, exclusionsOf, staleWeight, withoutExcluded } from '../../core/turns.ts';
import type { BatchManifest, Exclusion, Mark, Purpose, StaleRule, Trajectory, Turn } from '../../core/types.ts';
import { invalid } from '../../gateway/dialects/dialect.ts';
import { flowRefusal } from './flow-protocol.ts';

export interface GroupPoolOptions {
  readonly store: Store;
  readonly clock: Clock;
  /** Ended trajectories that make a group complete, unless a fetch says otherwise. */
  readonly group: number;
  /** Limit on waiting groups per channel. Default: no limit. */
  readonly maxGroups?: number | undefined;
  /** After this time a group is handed out incomplete, or dropped if nothing in it can be trained. Default: never. */
  readonly groupTimeoutMs?: number | undefined;
}

export interface FetchRequest {
  readonly purpose: Purpose;
  readonly groups: number;
  /** Defaults to the pool's `group`. */
  readonly n?: number | undefined;
  readonly stale?: StaleRule | undefined;
  /** Makes the fetch idempotent. */
  readonly batchId?: string | undefined;
}

interface ServedBatch {
  readonly batchId: string;
  readonly steps: readonly ServedStep[];
}

/** `waiting`: the signal aborted first. `closed`: no further groups will come. */
export type Fetched = ({ readonly kind: 'batch' } & ServedBatch) | { readonly kind: 'waiting' | 'closed' };

interface WaitingGroup {
  readonly groupId: string;
  readonly purpose: Purpose;
  /** When its first trajectory ended, in milliseconds since the epoch. */
  readonly since: number;
  /** Whether each ended trajectory can be trained: completed or truncated, and graded. */
  readonly members: Map<string, boolean>;
  /** Number of trajectories being written. The group is not handed out while it is above 0. */
  entering: number;
  /** Whether, at the last fetch, exclusion marks covered everything that could be handed out. */
  held: boolean;
}

/** Invariant: `kept` = waiting + `served` + `leftOut` + `dropped`. */
const NONE = {
  kept: 0,
  served: 0,
  /** Members of served groups that failed, were not graded, were excluded, or had nothing left to train. */
  leftOut: 0,
  dropped: 0,
  /** Not stored: `late` came after the group was closed, `refused` found no room. */
  late: 0,
  refused: 0,
  servedGroups: 0,
  droppedGroups: 0,
  servedSteps: 0,
  /** Left out or down-weighted. */
  staleSteps: 0,
};
type Counts = Record<keyof typeof NONE, number>;

interface Picked extends ServedSteps {
  readonly group: WaitingGroup;
}

type Identity = Pick<Trajectory, 'groupId' | 'purpose'>;

const nameOf = ({ purpose, groupId }: Identity) => `${purpose} ${groupId}`;

/** What the store knows of a trajectory before it is let in. */
interface Looked {
  readonly isKnown: boolean;
  readonly isClosed: boolean;
}

/** Batches that can be fetched again. */
const MOST_BATCHES = 1000;

const DROPPED = 'its group was dropped: ';

/** Milliseconds after which a waiting fetch looks again: removing a mark sends no notification. */
const LONGEST_WAIT = 1000;

export class GroupPool {
  readonly #options: GroupPoolOptions & { readonly maxGroups: number; readonly groupTimeoutMs: number };
  readonly #waiting = new Map<string, WaitingGroup>();
  readonly #counts: Readonly<Record<Purpose, Counts>> = { train: { ...NONE }, eval: { ...NONE } };
  readonly #batches = new Map<string, BatchManifest>();
  #lastStep = { step: 0, policyVersion: 0 };
  #isClosing = false;
  #change = Promise.withResolvers<void>();
  readonly #batching = new Mutex();

  private constructor({ maxGroups = Infinity, groupTimeoutMs = Infinity, ...options }: GroupPoolOptions) {
    this.#options = { ...options, maxGroups, groupTimeoutMs };
  }

  /** Restores the state from the store: waiting groups wait again, served and dropped ones are closed. */
  static async open(options: GroupPoolOptions): Promise<GroupPool> {
    const pool = new GroupPool(options);
    const { store } = options;
    const manifests = await store.manifests();
    for (const manifest of manifests) pool.#remember(manifest);
    const served = new Set(manifests.flatMap(({ rolloutIds }) => rolloutIds));
    const dropped = droppedBy(await store.marks());
    // One group at a time, so that a large store is never in memory.
    for (const purpose of ['train', 'eval'] as const) {
      for (const groupId of await store.groupIds({ purpose })) {
        for (const trajectory of await store.query({ purpose, groupId })) pool.#enter(trajectory);
        const group = pool.#waiting.get(nameOf({ purpose, groupId }))!;
        const ids = [...group.members.keys()];
        // One served member closes its group as served. It closes as dropped only if all its members were dropped.
        if (ids.some((id) => served.has(id))) pool.#closeServed(group, served);
        else if (ids.every((id) => dropped.has(id))) pool.#closeDropped(group);
      }
    }
    return pool;
  }

  /** A group that is stored but does not wait was closed, unless it is of sessions that are not of this pool. */
  async look({ rolloutId, ...identity }: Identity & Pick<Trajectory, 'rolloutId'>): Promise<Looked> {
    const { store } = this.#options;
    const isKnown = (await store.read(rolloutId)) !== undefined;
    return { isKnown, isClosed: !isKnown && !this.#waiting.has(nameOf(identity)) && (await this.#wasClosed(identity)) };
  }

  async #wasClosed({ groupId, purpose }: Identity): Promise<boolean> {
    const { store } = this.#options;
    if ((await store.count({ groupId, purpose, limit: 1 })) === 0) return false;
    if ((await store.count({ groupId, purpose, trained: true, limit: 1 })) > 0) return true;
    const dropped = droppedBy(await store.marks());
    return (await store.query({ groupId, purpose })).some(({ rolloutId }) => dropped.has(rolloutId));
  }

  /** Throws group_closed or pool_full, and counts it, if a trajectory of this group would not be stored. */
  admit(identity: Identity, { isKnown, isClosed }: Looked): void {
    const { groupId, purpose } = identity;
    if (isKnown) return;
    if (isClosed) {
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

  /** The trajectory is durable when this resolves. Throws like `admit`. */
  async keep(trajectory: Trajectory): Promise<void> {
    const { store } = this.#options;
    // The mutex keeps trajectories out of groups that are being batched; `entering` keeps this group out of batches during the write.
    const group = await this.#batching.run(() => this.#letIn(trajectory));
    // A repeated submission: the store checks that it is identical.
    if (group === undefined) return await store.append(trajectory);
    try {
      await store.append(trajectory);
      this.#enter(trajectory);
    } finally {
      group.entering--;
      if (group.members.size === 0 && group.entering === 0) this.#waiting.delete(nameOf(group));
      this.#changed();
    }
  }

  /** Undefined if the trajectory is known. */
  async #letIn(trajectory: Trajectory): Promise<WaitingGroup | undefined> {
    const looked = await this.look(trajectory);
    if (looked.isKnown) return undefined;
    this.admit(trajectory, looked);
    const evicted = this.#waiting.has(nameOf(trajectory)) ? undefined : this.#evictable(trajectory.purpose);
    if (evicted !== undefined) await this.#drop(evicted, 'it was not complete when others needed its place');
    const group = this.#groupOf(trajectory);
    group.entering++;
    return group;
  }

  /** Waits for the requested number of complete groups. After `close`, may return fewer. */
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

  /** What is in memory. */
  get sizes(): Readonly<Record<'waiting' | 'batches', number>> {
    return { waiting: this.#waiting.size, batches: this.#batches.size };
  }

  /** Complete groups are still handed out; fetches that wait for more get `closed`. */
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
    const isEnough = ({ length }: readonly unknown[]) => length >= (this.#isClosing ? 1 : request.groups);
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

  /** Undefined if nothing can be trained. The group is then dropped, unless that is due to exclusion marks, which can be removed. */
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

  /** Applies the batch's original staleness rule, so that it gets the same steps. Throws batch_conflict. */
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
    this.#waiting.delete(nameOf(group));
    this.#counts[group.purpose].droppedGroups++;
    this.#counts[group.purpose].dropped += group.members.size;
  }

  #closeServed(group: WaitingGroup, served: ReadonlySet<string>): void {
    const taken = [...group.members.keys()].filter((id) => served.has(id)).length;
    const counts = this.#counts[group.purpose];
    this.#waiting.delete(nameOf(group));
    counts.servedGroups++;
    counts.served += taken;
    counts.leftOut += group.members.size - taken;
  }

  #enter(trajectory: Trajectory): void {
    const { rolloutId, purpose, outcome, grade } = trajectory;
    const isEnded = outcome.kind === 'completed' || outcome.kind === 'truncated';
    const { members } = this.#groupOf(trajectory);
    if (!members.has(rolloutId)) this.#counts[purpose].kept++;
    members.set(rolloutId, isEnded && grade.kind === 'graded');
  }

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
    const [oldest] = this.#batches.keys();
    if (this.#batches.size > MOST_BATCHES && oldest !== undefined) this.#batches.delete(oldest);
  }

  #in(purpose: Purpose): readonly WaitingGroup[] {
    return [...this.#waiting.values()].filter((group) => group.purpose === purpose);
  }

  #isComplete({ entering, members, since }: WaitingGroup, n: number = this.#options.group): boolean {
    const { clock, groupTimeoutMs } = this.#options;
    return entering === 0 && members.size > 0 && (members.size >= n || clock.now() - since >= groupTimeoutMs);
  }

  /** Undefined if there is room or all groups are complete. Groups held by marks go first: they must not displace trainable ones. */
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

function droppedBy(marks: readonly Mark[]): ReadonlySet<string> {
  const drops = exclusionsIn(marks).filter(({ reason }) => reason.startsWith(DROPPED));
  return new Set(drops.map(({ rolloutId }) => rolloutId));
}

// Rows of a batch: one per trained turn. Turns that are too many policy versions old are left out or halved in weight per excess version.

export interface ServedStep {
  readonly groupId: string;
  readonly rolloutId: string;
  /** Index among the trajectory's trained turns, from 0. */
  readonly index: number;
  readonly isLast: boolean;
  readonly turn: Turn;
  /** Of the turn; `value` is the whole trajectory's. */
  readonly reward: number;
  readonly value: number;
  /** 1, or less if stale. */
  readonly weight: number;
}

interface ServedSteps {
  readonly steps: readonly ServedStep[];
  /** Number of turns that were too old, left out or down-weighted. */
  readonly stale: number;
}

function servedSteps(trajectories: readonly Trajectory[], rule?: StaleRule): ServedSteps {
  const rows = trajectories.flatMap((trajectory) => stepsOf(trajectory, rule));
  return {
    steps: inOrder(rows.filter(({ weight }) => weight > 0)),
    stale: rows.filter(({ weight }) => weight < 1).length,
  };
}

function inOrder(steps: readonly ServedStep[]): readonly ServedStep[] {
  return steps.toSorted((a, b) => (a.rolloutId === b.rolloutId ? a.index - b.index : a.rolloutId < b.rolloutId ? -1 : 1));
}

/** Numbers the turns before stale ones are left out, so that an index always names the same turn. */
function stepsOf(trajectory: Trajectory, rule: StaleRule | undefined): readonly ServedStep[] {
  const { groupId, rolloutId, grade } = trajectory;
  if (grade.kind !== 'graded') return [];
  const { value } = grade.reward;
  const turns = trajectory.turns.toSorted((a, b) => a.index - b.index);
  const trained = turns.flatMap((turn) => {
    const earned = earnedBy(trajectory, turn);
    return earned === undefined ? [] : [{ turn, reward: earned.reward, weight: staleWeight(turn.policyVersion, rule) }];
  });
  return trained.map((one, index) => ({ ...one, groupId, rolloutId, index, isLast: index === trained.length - 1, value }));
}
