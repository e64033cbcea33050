/**
 * What a task is known by where its row has no id: a hash of what is asked. So its name does not change when the file is shuffled, split,
 * appended to or written in another format.
 *
 * The answer is not in the hash: an agent sees the id of its task, and could try answers against it.
 */
import { createHash } from 'node:crypto';
import type { Json, TaskView } from '../core/types.ts';

/** 64 bits, as 16 hexadecimal digits. */
export function contentHash({ prompt, metadata }: Pick<TaskView, 'prompt' | 'metadata'>): string {
  const messages = prompt.map(({ role, content }) => ({ role, content }));
  return createHash('sha256')
    .update(canonical({ prompt: messages, metadata: metadata ?? null }))
    .digest('hex')
    .slice(0, 16);
}

/** The same text for the same JSON, whatever the order of its keys. */
export function canonical(value: Json): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(',')}]`;
  const fields = Object.entries(value as Readonly<Record<string, Json>>).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return `{${fields.map(([key, field]) => `${JSON.stringify(key)}:${canonical(field)}`).join(',')}}`;
}
