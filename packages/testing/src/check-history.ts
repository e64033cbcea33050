/**
 * Checks a run for lost, altered or mixed-up records, in the spirit of Jepsen's total-queue checker: compares what its processes were told
 * (the history) with what the store holds in the end. Allows for kills: an operation without an observed end may or may not have happened,
 * and a later process may have sampled a rollout again. Judges records only, not whether the weights are right.
 */
import type { BatchManifest, Trajectory, Turn } from '../../../src/index.ts';
import { digestOf, type Operation, readHistory } from './record-history.ts';

export interface HistoryCheck {
  /** The text that `recordHistory` wrote, from all processes. */
  readonly history: string;
  readonly trajectories: readonly Trajectory[];
  readonly manifests: readonly BatchManifest[];
  /** How many versions older than the newest one a trained turn may be. */
  readonly staleness: number;
}

/** The rollout, turn or step concerned, and what is wrong with it. */
export interface Finding {
  readonly id: string;
  readonly why: string;
}

export const FAULTS = ['lost', 'altered', 'duplicated', 'unexpected', 'foreign', 'mixedVersion', 'stale'] as const;
export type Fault = (typeof FAULTS)[number];

export interface HistoryReport extends Readonly<Record<Fault, readonly Finding[]>> {
  readonly clean: boolean;
  /** Operations that took effect without an observed end. Not a fault. */
  readonly recovered: readonly Finding[];
  readonly counts: {
    readonly processes: number;
    readonly ok: number;
    readonly failed: number;
    readonly unknown: number;
    readonly trajectories: number;
    readonly steps: number;
    readonly turns: number;
  };
}

type Find = (kind: Fault | 'recovered', id: string, why: string) => void;

/** Throws STORE_FORMAT if the history cannot be read. */
export function checkHistory({ history, trajectories, manifests, staleness }: HistoryCheck): HistoryReport {
  const { processes, operations } = readHistory(history);
  const kinds = [...FAULTS, 'recovered'] as const;
  const found = Object.fromEntries(kinds.map((kind) => [kind, []])) as unknown as Record<Fault | 'recovered', Finding[]>;
  const find: Find = (kind, id, why) => void found[kind].push({ id, why });
  checkRecords(attemptsOf(operations, 'append'), trajectories.map(trajectoryRecord), find);
  const commits = attemptsOf(operations, 'commit');
  checkRecords(commits, manifests.map(manifestRecord), find);
  checkSteps(manifests, commits, find);
  checkTurns(trajectories, operations, find);
  checkMembers({ trajectories, manifests, staleness }, find);
  if (staleness === 0) checkOneVersion(trajectories, find);
  const inState = (state: Operation['state']): number => operations.filter((operation) => operation.state === state).length;
  return {
    clean: FAULTS.every((kind) => found[kind].length === 0),
    ...found,
    counts: {
      processes,
      ok: inState('ok'),
      failed: inState('failed'),
      unknown: inState('unknown'),
      trajectories: trajectories.length,
      steps: manifests.length,
      turns: trajectories.reduce((sum, { turns }) => sum + turns.length, 0),
    },
  };
}

interface Kept {
  readonly id: string;
  readonly content: string;
}

interface Attempt extends Kept {
  readonly state: Operation['state'];
}

const trajectoryRecord = (trajectory: Trajectory): Kept => ({ id: trajectory.rolloutId, content: digestOf(trajectory) });
const manifestRecord = (manifest: BatchManifest): Kept => ({ id: stepName(manifest), content: digestOf(manifest) });
const stepName = ({ step }: { readonly step: number }): string => `step ${step}`;
const turnName = ({ rolloutId }: Trajectory, { index }: Turn): string => `${rolloutId} turn ${index}`;

function attemptsOf(operations: readonly Operation[], kind: 'append' | 'commit'): readonly Attempt[] {
  return operations.flatMap(({ call, state }) => {
    if (call.kind !== kind) return [];
    return [{ id: call.kind === 'append' ? call.rolloutId : stepName(call), content: call.content, state }];
  });
}

/** What was acknowledged is stored once, unaltered; what is stored was requested. */
function checkRecords(attempts: readonly Attempt[], kept: readonly Kept[], find: Find): void {
  const attemptsBy = Map.groupBy(attempts, ({ id }) => id);
  const keptBy = Map.groupBy(kept, ({ id }) => id);
  for (const id of new Set([...attemptsBy.keys(), ...keptBy.keys()])) {
    const asked = attemptsBy.get(id) ?? [];
    const held = keptBy.get(id) ?? [];
    const acknowledged = new Set(asked.filter(({ state }) => state === 'ok').map(({ content }) => content));
    if (held.length > 1) find('duplicated', id, `it is kept ${held.length} times`);
    if (acknowledged.size > 1) find('duplicated', id, `${acknowledged.size} different records of it were acknowledged`);
    for (const { content } of held) checkKept(id, content, asked, find);
    const isAltered = held.some(({ content }) => asked.every((attempt) => attempt.content !== content));
    const missing = [...acknowledged].filter((content) => held.every((record) => record.content !== content));
    if (missing.length > 0 && !isAltered) find('lost', id, 'it was acknowledged and is not there');
  }
}

function checkKept(id: string, content: string, asked: readonly Attempt[], find: Find): void {
  const matching = asked.filter((attempt) => attempt.content === content);
  if (asked.length === 0) find('unexpected', id, 'it is there, and nobody asked for it');
  else if (matching.length === 0) find('altered', id, 'what is there is not what was given');
  else if (matching.every(({ state }) => state === 'failed')) find('unexpected', id, 'it is there although writing it failed');
  else if (matching.every(({ state }) => state !== 'ok')) find('recovered', id, 'nobody saw it end, and it is there');
}

/** No step acknowledged twice, no version made twice, no rollout trained twice. Unlike appends, commits must not be repeated. */
function checkSteps(manifests: readonly BatchManifest[], commits: readonly Attempt[], find: Find): void {
  const acknowledged = commits.filter(({ state }) => state === 'ok');
  for (const [step, accepted] of Map.groupBy(acknowledged, ({ id }) => id)) {
    if (accepted.length > 1) find('duplicated', step, `it was acknowledged ${accepted.length} times`);
  }
  for (const [version, steps] of Map.groupBy(manifests, ({ policyVersion }) => policyVersion)) {
    if (steps.length > 1) find('duplicated', `version ${version}`, `made by ${steps.map(stepName).join(' and ')}`);
  }
  const memberships = manifests.flatMap((manifest) => manifest.rolloutIds.map((id) => ({ id, step: stepName(manifest) })));
  for (const [id, steps] of Map.groupBy(memberships, (member) => member.id)) {
    if (steps.length > 1) find('duplicated', id, `trained in ${steps.map(({ step }) => step).join(' and ')}`);
  }
}

/** Every turn is what the engine returned for its seed and prompt. A seed belongs to one call, so two turns never share one. */
function checkTurns(trajectories: readonly Trajectory[], operations: readonly Operation[], find: Find): void {
  const versionsOf = new Map<string, Set<number>>();
  for (const { call, sampled } of operations) {
    if (call.kind !== 'sample' || sampled === undefined) continue;
    const key = [call.seed, call.prompt, sampled.result].join(' ');
    versionsOf.set(key, (versionsOf.get(key) ?? new Set()).add(sampled.policyVersion));
  }
  const owners = new Map<string, string>();
  for (const [trajectory, turn] of turnsIn(trajectories)) {
    // Turns of other models did not come from the engine.
    if (turn.model !== undefined) continue;
    const name = turnName(trajectory, turn);
    const key = [turn.sampling.seed, digestOf(turn.promptIds), digestOf([turn.sampledIds, turn.logprobs])].join(' ');
    const versions = versionsOf.get(key);
    const owner = owners.get(key);
    owners.set(key, owner ?? name);
    if (versions === undefined) find('foreign', name, `the engine returned no such tokens for seed ${turn.sampling.seed}`);
    else if (owner !== undefined) find('foreign', name, `its tokens were returned to ${owner}`);
    else if (!versions.has(turn.policyVersion)) {
      find('mixedVersion', name, `it says version ${turn.policyVersion}, the engine said ${[...versions].join(' or ')}`);
    }
  }
}

function* turnsIn(trajectories: readonly Trajectory[]): Generator<[Trajectory, Turn]> {
  for (const trajectory of trajectories) for (const turn of trajectory.turns) yield [trajectory, turn];
}

/** A step trains stored training rollouts, sampled from recent enough versions that existed before the step. */
function checkMembers({ trajectories, manifests, staleness }: Omit<HistoryCheck, 'history'>, find: Find): void {
  const keptAs = new Map(trajectories.map((trajectory) => [trajectory.rolloutId, trajectory]));
  for (const manifest of manifests) {
    const newest = manifest.policyVersion - 1;
    const isDropped = (manifest.stale?.rule ?? 'drop') === 'drop';
    for (const id of manifest.rolloutIds) {
      const trajectory = keptAs.get(id);
      if (trajectory?.purpose !== 'train') {
        const found = trajectory === undefined ? 'not kept' : 'for evaluation';
        find('foreign', id, `${stepName(manifest)} names it, and it is ${found}`);
      }
      for (const turn of trajectory?.turns.filter(({ trainable }) => trainable) ?? []) {
        const why = `sampled by version ${turn.policyVersion}, trained in ${stepName(manifest)} from version ${newest}`;
        if (isDropped && turn.policyVersion < newest - staleness) find('stale', turnName(trajectory!, turn), why);
        if (turn.policyVersion > newest) find('mixedVersion', turnName(trajectory!, turn), why);
      }
    }
  }
}

function checkOneVersion(trajectories: readonly Trajectory[], find: Find): void {
  for (const { rolloutId, turns } of trajectories) {
    const versions = new Set(turns.filter(({ trainable }) => trainable).map(({ policyVersion }) => policyVersion));
    if (versions.size > 1) find('mixedVersion', rolloutId, `its turns are of versions ${[...versions].join(', ')}`);
  }
}
