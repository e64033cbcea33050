/**
 * Groups of trajectories for whoever trains somewhere else: kept as they end, handed out when enough of a group have ended.
 *
 * What was acknowledged is in the store. A batch is a manifest there, written before it is handed out: so no trajectory is in two of them, also
 * after a kill. Asked for again under its own id a batch is the same one again, so that an answer that got lost is not. What is marked as
 * excluded is not handed out. A trajectory whose group was handed out or dropped comes too late: it is refused, counted, and not kept.
 * Does not compute advantages.
 */
import { randomUUID } from 'node:crypto';
import { Mutex } from '../core/async.ts';
import type { Clock, Store } from '../core/contracts.ts';
import { exclusionsIn, exclusionsOf, withoutExcluded } from '../core/turns.ts';
import type { BatchManifest, Exclusion, Purpose, StaleRule, Trajectory } from '../core/types.ts';
import {
  type ChannelCounts,
  type Closed,
  inOrder,
  PoolCounts,
  type ServedStep,
  servedSteps,
  type WaitingGroup,
  WaitingGroups,
} from './waiting-groups.ts';

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

/** A trajectory that is not taken. */
export class NotTaken extends Error {
  override readonly name = 'NotTaken';
  readonly why: Closed;

  constructor(why: Closed, groupId: string) {
    super(
      why === 'late'
        ? `group ${groupId} was handed out or dropped before`
        : `there is no room for group ${groupId}: others wait to be fetched`,
    );
    this.why = why;
  }
}

/** A batch of this name was handed out from the other channel. */
export class OtherChannel extends Error {
  override readonly name = 'OtherChannel';
}

const DROPPED = 'its group was dropped: ';

/** A fetch looks again after this time in any case: a mark that is taken back tells nobody. Milliseconds. */
const LONGEST_WAIT = 1000;

type Identity = Pick<Trajectory, 'rolloutId' | 'groupId' | 'purpose'>;

/** A group that may be handed out, and its rows. */
interface Picked {
  readonly group: WaitingGroup;
  readonly steps: readonly ServedStep[];
  readonly stale: number;
}

export class GroupPool {
  readonly #options: GroupPoolOptions;
  readonly #groups = new WaitingGroups();
  readonly #counts = new PoolCounts();
  readonly #known = new Set<string>();
  readonly #batches = new Map<string, BatchManifest>();
  #lastStep = { step: 0, policyVersion: 0 };
  #closing = false;
  #change = Promise.withResolvers<void>();
  /** Batches are made one after the other. */
  #batching = new Mutex();

  private constructor(options: GroupPoolOptions) {
    this.#options = options;
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
    for (const group of [...pool.#groups.of('train'), ...pool.#groups.of('eval')]) {
      const ids = [...group.members.keys()];
      if (ids.some((id) => served.has(id))) pool.#settle(group, served, 'served');
      else if (ids.every((id) => dropped.has(id))) pool.#settle(group, served, 'dropped');
    }
    return pool;
  }

  /** Groups of a channel that may wait. */
  get maxGroups(): number | undefined {
    return this.#options.maxGroups;
  }

  /** Throws NotTaken, and counts it, where a trajectory of this group would not be kept. */
  admit(identity: Identity): void {
    const { rolloutId, groupId, purpose } = identity;
    if (this.#known.has(rolloutId)) return;
    const why = this.#groups.isClosed(identity) ? 'late' : this.#hasRoom(identity) ? undefined : 'full';
    if (why === undefined) return;
    this.#counts.add(purpose, why === 'late' ? { late: 1 } : { refused: 1 });
    throw new NotTaken(why, groupId);
  }

  /** Durable when it resolves. Throws NotTaken. */
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
      this.#groups.forget(group);
      this.#changed();
    }
  }

  async #letIn(trajectory: Trajectory): Promise<WaitingGroup> {
    this.admit(trajectory);
    const evicted = this.#groups.get(trajectory) === undefined ? this.#evictable(trajectory.purpose) : undefined;
    if (evicted !== undefined) await this.#drop(evicted, 'it was not complete when others needed its place');
    const group = this.#groups.open(trajectory, trajectory.endedAt);
    group.entering++;
    return group;
  }

  /** Waits until there are as many complete groups as are wanted. After `close` there may be fewer. */
  async fetch(request: FetchRequest, signal: AbortSignal): Promise<Fetched> {
    for (;;) {
      const change = this.#change.promise;
      const batch = await this.#batching.run(() => this.#take(request));
      if (batch !== undefined) return { kind: 'batch', ...batch };
      if (this.#closing) return { kind: 'closed' };
      if (signal.aborted) return { kind: 'waiting' };
      await this.#wait(change, request.purpose, signal);
    }
  }

  /** Complete groups are still handed out; whoever waits for more is told that nothing comes. */
  close(): void {
    this.#closing = true;
    this.#changed();
  }

  counts(purpose: Purpose): ChannelCounts {
    const groups = this.#groups.of(purpose);
    return {
      ...this.#counts.of(purpose),
      waiting: groups.reduce((sum, { members }) => sum + members.size, 0),
      waitingGroups: groups.length,
      readyGroups: groups.filter((group) => this.#isComplete(group)).length,
    };
  }

  async #take(request: FetchRequest): Promise<ServedBatch | undefined> {
    const known = request.batchId === undefined ? undefined : this.#batches.get(request.batchId);
    if (known !== undefined) return await this.#again(known, request.purpose);
    const complete = this.#groups.of(request.purpose).filter((group) => this.#isComplete(group, request.n));
    if (complete.length === 0 || (complete.length < request.groups && !this.#closing)) return undefined;
    const members = new Set(complete.flatMap((group) => [...group.members.keys()]));
    const exclusions = exclusionsOf(members, await this.#options.store.marks());
    const picks: Picked[] = [];
    for (const group of complete) {
      if (picks.length === request.groups) break;
      const pick = await this.#pick(group, exclusions, request.stale);
      if (pick !== undefined) picks.push(pick);
    }
    if (picks.length === 0 || (picks.length < request.groups && !this.#closing)) return undefined;
    return await this.#handOut(picks, exclusions, request);
  }

  /** Undefined where there is nothing in it to train: then it is dropped, unless somebody may take back a mark. */
  async #pick(group: WaitingGroup, exclusions: readonly Exclusion[], rule: StaleRule | undefined): Promise<Picked | undefined> {
    const trajectories = await this.#read([...group.members].flatMap(([id, hasSteps]) => (hasSteps ? [id] : [])));
    const { steps, stale } = servedSteps(withoutExcluded(trajectories, exclusions), rule);
    group.held = steps.length === 0 && exclusions.some(({ rolloutId }) => group.members.has(rolloutId));
    if (steps.length > 0) return { group, steps, stale };
    if (group.held) return undefined;
    this.#counts.add(group.purpose, { staleSteps: stale });
    await this.#drop(group, stale > 0 ? 'all of it was sampled too long ago' : 'nothing in it can be trained');
    return undefined;
  }

  async #handOut(picks: readonly Picked[], exclusions: readonly Exclusion[], request: FetchRequest): Promise<ServedBatch> {
    const { store, clock } = this.#options;
    const { batchId = randomUUID() } = request;
    const steps = inOrder(picks.flatMap((pick) => pick.steps));
    const ids = new Set(picks.flatMap(({ group }) => [...group.members.keys()]));
    const excluded = exclusions.filter(({ rolloutId }) => ids.has(rolloutId));
    const manifest: BatchManifest = {
      step: this.#lastStep.step + 1,
      policyVersion: this.#lastStep.policyVersion + 1,
      rolloutIds: [...new Set(steps.map(({ rolloutId }) => rolloutId))].toSorted(),
      ...(excluded.length === 0 ? {} : { excluded }),
      batchId,
      ...(request.stale === undefined ? {} : { stale: request.stale }),
      checkpoint: null,
      groups: { next: 1, pending: [] },
      metrics: { groups: picks.length, steps: steps.length },
      createdAt: clock.now(),
    };
    await store.commit(manifest);
    this.#remember(manifest);
    const served = new Set(manifest.rolloutIds);
    for (const { group, stale, steps: own } of picks) {
      this.#settle(group, served, 'served');
      this.#counts.add(group.purpose, { servedSteps: own.length, staleSteps: stale });
    }
    return { batchId, steps };
  }

  /** By the rule it was made by: what is stale now was handed out then. */
  async #again({ rolloutIds, excluded = [], batchId = '', stale }: BatchManifest, purpose: Purpose): Promise<ServedBatch> {
    const trajectories = await this.#read(rolloutIds);
    if (trajectories.some((one) => one.purpose !== purpose)) throw new OtherChannel(`batch ${batchId} is of the other channel`);
    return { batchId, steps: servedSteps(withoutExcluded(trajectories, excluded), stale).steps };
  }

  async #read(ids: readonly string[]): Promise<readonly Trajectory[]> {
    const read = await Promise.all(ids.map((id) => this.#options.store.read(id)));
    return read.filter((one) => one !== undefined);
  }

  async #drop(group: WaitingGroup, why: string): Promise<void> {
    const { store, clock } = this.#options;
    this.#settle(group, new Set(), 'dropped');
    const at = clock.now();
    await store.mark(
      [...group.members.keys()].map((rolloutId) => ({ rolloutId, excluded: true, reason: `${DROPPED}${why}`, at })),
    );
  }

  #settle(group: WaitingGroup, served: ReadonlySet<string>, as: 'served' | 'dropped'): void {
    const { purpose, members } = group;
    const taken = [...members.keys()].filter((id) => served.has(id)).length;
    this.#groups.close(group);
    this.#counts.add(
      purpose,
      as === 'served'
        ? { servedGroups: 1, served: taken, leftOut: members.size - taken }
        : { droppedGroups: 1, dropped: members.size },
    );
  }

  #enter(trajectory: Trajectory): void {
    const { rolloutId, purpose, outcome, grade, endedAt } = trajectory;
    const isEnded = outcome.kind === 'completed' || outcome.kind === 'truncated';
    this.#groups.open(trajectory, endedAt).members.set(rolloutId, isEnded && grade.kind === 'graded');
    // The same trajectory may arrive twice at once; it is one.
    if (!this.#known.has(rolloutId)) this.#counts.add(purpose, { kept: 1 });
    this.#known.add(rolloutId);
  }

  #remember(manifest: BatchManifest): void {
    const { step, policyVersion, batchId } = manifest;
    this.#lastStep = { step, policyVersion };
    if (batchId !== undefined) this.#batches.set(batchId, manifest);
  }

  #isComplete({ entering, members, since }: WaitingGroup, n: number = this.#options.group): boolean {
    const { clock, groupTimeoutMs = Infinity } = this.#options;
    return entering === 0 && members.size > 0 && (members.size >= n || clock.now() - since >= groupTimeoutMs);
  }

  #hasRoom(identity: Identity): boolean {
    const { maxGroups = Infinity } = this.#options;
    const { purpose } = identity;
    const isNew = this.#groups.get(identity) === undefined;
    return !isNew || this.#groups.of(purpose).length < maxGroups || this.#evictable(purpose) !== undefined;
  }

  /** Undefined where there is room, or every group is complete. What marks hold back may stay, but not at the cost of what can be trained. */
  #evictable(purpose: Purpose): WaitingGroup | undefined {
    const { maxGroups = Infinity } = this.#options;
    const groups = this.#groups.of(purpose);
    if (groups.length < maxGroups) return undefined;
    const idle = groups.filter(({ entering }) => entering === 0);
    return idle.find(({ held }) => held) ?? idle.find((group) => !this.#isComplete(group));
  }

  #changed(): void {
    this.#change.resolve();
    this.#change = Promise.withResolvers<void>();
  }

  async #wait(change: Promise<void>, purpose: Purpose, signal: AbortSignal): Promise<void> {
    const { clock, groupTimeoutMs = Infinity } = this.#options;
    const next = Math.min(
      ...this.#groups
        .of(purpose)
        .map(({ since }) => since + groupTimeoutMs - clock.now())
        .filter((ms) => ms > 0),
    );
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, Math.min(LONGEST_WAIT, next));
    const give = (): void => resolve();
    signal.addEventListener('abort', give, { once: true });
    await Promise.race([change, promise]);
    signal.removeEventListener('abort', give);
    clearTimeout(timer);
  }
}
