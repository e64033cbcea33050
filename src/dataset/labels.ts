/**
 * Answers where an agent could read them. In the metadata under a name that says so they are refused. Elsewhere they are warned about,
 * since they may belong there: a text to correct, a list of choices.
 */
import { sameJson } from '../core/json.ts';
import type { Json, Task } from '../core/types.ts';
import { isRecord } from './rows.ts';

/** Without case, hyphens and underscores. `target` and `expected` are not among them: often they are part of the question. */
const LABEL_KEYS: ReadonlySet<string> = new Set(
  'answer correctanswer expectedanswer finalanswer goldanswer gold groundtruth label referenceanswer solution'.split(' '),
);
/** Shorter answers occur in texts by themselves: a number, a name of a choice. */
const TELLING_CHARS = 12;

type Labelled = Pick<Task, 'answer' | 'prompt' | 'metadata'> & { readonly id?: string | undefined };

/** The path of the key in the metadata that holds the answer and is named like one. Lists are not searched: they may be choices. */
export function labelInMetadata({ answer, metadata }: Pick<Task, 'answer' | 'metadata'>): string | undefined {
  if (answer === undefined || answer === null) return undefined;
  return labelIn(metadata, answer, 'metadata');
}

function labelIn(object: unknown, answer: Json, path: string): string | undefined {
  if (!isRecord(object)) return undefined;
  for (const [key, value] of Object.entries(object)) {
    const here = `${path}.${key.slice(0, 40)}`;
    if (LABEL_KEYS.has(key.toLowerCase().replace(/[-_]/g, '')) && isSame(value, answer)) return here;
    const below = labelIn(value, answer, here);
    if (below !== undefined) return below;
  }
  return undefined;
}

function isSame(found: unknown, answer: Json): boolean {
  return sameJson(found, answer) || (typeof found !== 'object' && typeof answer !== 'object' && String(found) === String(answer));
}

/** Where a warning says the answer is. */
export type LabelPlace = 'prompt' | 'metadata' | 'id';

export function labelPlaces({ id, answer, prompt, metadata }: Labelled): readonly LabelPlace[] {
  const isThere = finderOf(answer);
  if (isThere === undefined) return [];
  const places: LabelPlace[] = [];
  if (prompt.some(({ content }) => isThere(content))) places.push('prompt');
  if (holds(metadata, isThere)) places.push('metadata');
  if (isThere(id)) places.push('id');
  return places;
}

/** Whether a value shows the answer; undefined where the answer is too short to say. */
function finderOf(answer: Json | undefined): ((value: unknown) => boolean) | undefined {
  if (typeof answer === 'string' || typeof answer === 'number') {
    const text = String(answer).trim();
    if (text.length < TELLING_CHARS) return undefined;
    return (value) => (typeof value === 'string' ? value.includes(text) : typeof value === 'number' && String(value) === text);
  }
  if (typeof answer !== 'object' || answer === null || JSON.stringify(answer).length < TELLING_CHARS) return undefined;
  return (value) => typeof value === 'object' && sameJson(value, answer);
}

function holds(value: unknown, isThere: (value: unknown) => boolean): boolean {
  if (isThere(value)) return true;
  return typeof value === 'object' && value !== null && Object.values(value).some((item) => holds(item, isThere));
}
