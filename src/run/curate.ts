/**
 * Leaving rollouts and turns out of training by hand, and taking that back. Marks are added to the store, also of a run that is going: its
 * next batch is made without them. What a step has trained stays trained.
 *
 * Everything that is wrong with a request is said at once, and then nothing is written.
 */
import type { Store } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { exclusionsIn, placeOf } from '../core/turns.ts';
import type { Exclusion, Mark } from '../core/types.ts';
import { stepsIn } from './inspect.ts';

export interface CurationRequest {
  readonly rolloutIds: readonly string[];
  /** Only this turn of each. */
  readonly turn?: number | undefined;
  readonly reason?: string | undefined;
  readonly undo?: boolean | undefined;
}

export interface CurationLine extends Mark {
  /** The step that trained the rollout before; it stays trained. */
  readonly step: number | null;
  readonly purpose: 'train' | 'eval';
}

const LONGEST_REASON = 2000;
const TAKEN_BACK = 'taken back';

/** What is left out now. */
export async function curationIn(store: Store): Promise<readonly CurationLine[]> {
  return await linesOf(store, exclusionsIn(await store.marks()));
}

/** The marks that were made. What is left out already, for the same reason, is not marked again. */
export async function curate(store: Store, request: CurationRequest, now: number = Date.now()): Promise<readonly CurationLine[]> {
  const { turn, undo = false } = request;
  const reason = reasonOf(request);
  const places = [...new Set(request.rolloutIds)].map(
    (rolloutId): Exclusion => ({
      rolloutId,
      ...(turn === undefined ? {} : { turn }),
    }),
  );
  const inForce = new Map(exclusionsIn(await store.marks()).map((mark) => [placeOf(mark), mark]));
  await checkPlaces(store, places, undo ? inForce : undefined);
  const marks = places
    .filter((place) => undo || inForce.get(placeOf(place))?.reason !== reason)
    .map((place): Mark => ({ ...place, excluded: !undo, reason, at: now }));
  await store.mark(marks);
  return await linesOf(store, marks);
}

function reasonOf({ reason, undo = false }: CurationRequest): string {
  const given = reason?.trim() ?? (undo ? TAKEN_BACK : '');
  if (given !== '' && given.length <= LONGEST_REASON) return given;
  const found = given === '' ? 'none' : `${given.length} characters`;
  throw new TrainyardError('USAGE', `reason: expected 1 to ${LONGEST_REASON} characters, found ${found}`, {
    hint: 'say with --reason why it is not to be trained: it is kept for whoever looks later',
  });
}

/** `inForce`: what may be taken back. */
async function checkPlaces(
  store: Store,
  places: readonly Exclusion[],
  inForce: ReadonlyMap<string, Mark> | undefined,
): Promise<void> {
  const problems: string[] = [];
  for (const place of places) {
    const { rolloutId, turn } = place;
    const trajectory = await store.read(rolloutId);
    const name = JSON.stringify(rolloutId);
    if (trajectory === undefined) problems.push(`no rollout ${name} is kept`);
    else if (turn !== undefined && !trajectory.turns.some(({ index }) => index === turn)) {
      problems.push(`rollout ${name} has no turn ${turn}, it has ${trajectory.turns.length}, counted from 0`);
    } else if (inForce !== undefined && !inForce.has(placeOf(place))) {
      problems.push(`${turn === undefined ? '' : `turn ${turn} of `}rollout ${name} is not excluded`);
    }
  }
  if (problems.length === 0) return;
  throw new TrainyardError('USAGE', problems.join('; '), {
    hint: 'nothing was written; trainyard show <run> lists rollouts, trainyard curate <run> what is excluded',
  });
}

async function linesOf(store: Store, marks: readonly Mark[]): Promise<readonly CurationLine[]> {
  const steps = await stepsIn(store);
  return await Promise.all(
    marks.map(async (mark) => ({
      ...mark,
      step: steps.get(mark.rolloutId) ?? null,
      purpose: (await store.read(mark.rolloutId))?.purpose ?? 'train',
    })),
  );
}
