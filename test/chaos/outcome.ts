/** What a run under faults came to, and how it compares with one that nobody disturbed. Nothing of it is about time. */
import { hash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Store } from '../../src/core/contracts.ts';
import type { BatchManifest } from '../../src/core/types.ts';

export interface Result {
  readonly rollouts: readonly (readonly [id: string, content: string])[];
  readonly manifests: readonly BatchManifest[];
  /** The last checkpoint, by the digests of its files. */
  readonly weights: string;
}

/** Throws if a record of the store is damaged. */
export async function resultOf(store: Store, run: string): Promise<Result> {
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
  const shown = (id: string): string => `${id}: ${there.get(id)?.slice(0, 200) ?? 'missing'}`;
  return {
    lost: [
      ...[...wanted].filter(([id, content]) => there.get(id) !== content).map(([id]) => shown(id)),
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
