/**
 * When a step may be committed: it follows the last one, and each of its rollouts is kept and in no other step.
 *
 * One function for all stores, so that they refuse the same manifests in the same words. It reads nothing itself; the caller
 * asks inside the transaction that will write.
 */
import { TrainyardError } from '../core/errors.ts';
import type { BatchManifest } from '../core/types.ts';

/** What a store knows when a manifest arrives. */
export interface ManifestFacts {
  readonly last: BatchManifest | undefined;
  isKept(rolloutId: string): boolean;
  /** The committed step a rollout is in. */
  stepOf(rolloutId: string): number | undefined;
}

/** Ids shown in one message; a batch may hold thousands. */
const SHOWN_IDS = 5;

/** Throws STORE_CONFLICT, naming everything that stands against the manifest. */
export function checkManifest(manifest: BatchManifest, facts: ManifestFacts): void {
  const found = [
    ...orderProblems(manifest, facts.last),
    ...memberProblems(manifest.rolloutIds, facts),
    ...excludedProblems(manifest),
  ];
  if (found.length === 0) return;
  throw new TrainyardError('STORE_CONFLICT', `step ${manifest.step} cannot be committed: ${found.join('; ')}`, {
    hint: 'nothing was written; read manifests() and continue after the last one, with rollouts that are kept and not yet trained',
  });
}

function orderProblems(manifest: BatchManifest, last: BatchManifest | undefined): readonly string[] {
  const problems: string[] = [];
  const step = (last?.step ?? 0) + 1;
  if (manifest.step !== step) problems.push(`found step ${manifest.step}, expected ${step}`);
  if (last !== undefined && manifest.policyVersion !== last.policyVersion + 1) {
    problems.push(`found policy version ${manifest.policyVersion}, expected ${last.policyVersion + 1}`);
  }
  return problems;
}

function memberProblems(rolloutIds: readonly string[], facts: ManifestFacts): readonly string[] {
  const seen = new Set<string>();
  const twice: string[] = [];
  const unknown: string[] = [];
  const trained: string[] = [];
  for (const id of rolloutIds) {
    if (seen.has(id)) {
      twice.push(JSON.stringify(id));
      continue;
    }
    seen.add(id);
    const step = facts.stepOf(id);
    if (step !== undefined) trained.push(`${JSON.stringify(id)} (step ${step})`);
    else if (!facts.isKept(id)) unknown.push(JSON.stringify(id));
  }
  return [...listed('listed twice', twice), ...listed('not in the store', unknown), ...listed('already trained', trained)];
}

function excludedProblems({ rolloutIds, excluded = [] }: BatchManifest): readonly string[] {
  const whole = excluded.filter(({ rolloutId, turn }) => turn === undefined && rolloutIds.includes(rolloutId));
  return listed(
    'trained and left out at once',
    whole.map(({ rolloutId }) => JSON.stringify(rolloutId)),
  );
}

function listed(problem: string, ids: readonly string[]): readonly string[] {
  if (ids.length === 0) return [];
  const more = ids.length > SHOWN_IDS ? ` and ${ids.length - SHOWN_IDS} more` : '';
  return [`${problem}: ${ids.slice(0, SHOWN_IDS).join(', ')}${more}`];
}
