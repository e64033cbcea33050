/** Answers where an agent could read them: in the metadata they are refused, in the prompt they are warned about, since they may belong there. */
import { sameJson } from '../core/json.ts';
import type { Json, Task } from '../core/types.ts';
import { isRecord } from './rows.ts';

const LABEL_KEYS = ['answer', 'ground_truth', 'label', 'solution'];
/** Shorter answers occur in texts by themselves: a number, a name of a choice. */
const TELLING_CHARS = 12;

/** The key of the metadata that holds the answer. */
export function labelInMetadata({ answer, metadata }: Pick<Task, 'answer' | 'metadata'>): string | undefined {
  if (answer === undefined || answer === null || !isRecord(metadata)) return undefined;
  return LABEL_KEYS.find((key) => Object.hasOwn(metadata, key) && isSame(metadata[key], answer));
}

function isSame(found: unknown, answer: Json): boolean {
  return sameJson(found, answer) || (typeof found !== 'object' && typeof answer !== 'object' && String(found) === String(answer));
}

export function isLabelInPrompt({ answer, prompt }: Pick<Task, 'answer' | 'prompt'>): boolean {
  if (typeof answer !== 'string' && typeof answer !== 'number') return false;
  const text = String(answer).trim();
  return text.length >= TELLING_CHARS && prompt.some(({ content }) => content.includes(text));
}
