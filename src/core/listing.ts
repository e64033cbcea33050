/**
 * How rollouts are listed: the order that is asked for, and what those in the list have in common. For the server, and for the page in an
 * exported file, which has none. filter.ts says which are listed.
 */
import { TrainyardError } from './errors.ts';
import type { FilterRow } from './filter.ts';
import { meanOf } from './statistics.ts';

const SORT_KEYS = ['seq', 'reward', 'turns', 'tokens', 'seconds', 'task'] as const;
/** A leading minus sorts downwards. */
export type SortKey = (typeof SORT_KEYS)[number];

/** What lacks the value comes last either way; equals, the latest first. */
export function sortedBy(rows: readonly FilterRow[], sort: string): readonly FilterRow[] {
  const key = sort.replace(/^-/, '') as SortKey;
  if (!SORT_KEYS.includes(key)) {
    throw new TrainyardError('USAGE', `sort: expected ${SORT_KEYS.join(', ')}, found ${JSON.stringify(key)}`);
  }
  const sign = sort.startsWith('-') ? -1 : 1;
  const found = rows.map((row) => [key === 'task' ? row.taskId : row[key], row] as const);
  found.sort(([a, one], [b, other]) => {
    if (a === b) return other.seq - one.seq;
    if (a === null || b === null) return a === null ? 1 : -1;
    return a < b ? -sign : sign;
  });
  return found.map(([, row]) => row);
}

export function measuresOf(rows: readonly FilterRow[]) {
  // Not by flatMap, which takes far longer.
  const rewards = rows.map(({ reward }) => reward).filter((reward) => reward !== null);
  const successes = rows.filter(({ success }) => success).length;
  return { meanReward: rewards.length === 0 ? null : meanOf(rewards), successes };
}
