/**
 * How a rollout ended, told by its model calls. One that failed counts whether or not its client passed that on, or a broken engine would
 * look like a bad policy. In each conversation the last word holds: a failure with an answer after it was recovered from.
 */
import type { Session } from './contracts.ts';
import type { LimitName, Outcome, Turn, UnansweredCall } from './types.ts';

type Calls = Pick<Session, 'turns' | 'unanswered' | 'isAfter'>;
type FailedCall = UnansweredCall & Required<Pick<UnansweredCall, 'failure'>>;

const isFailed = (call: UnansweredCall): call is FailedCall => call.failure !== undefined;
const seatOf = ({ role, thread }: Pick<Turn, 'role' | 'thread'>): string => JSON.stringify([role, thread]);
/** By a second try, not by a call beside it. An answer that nobody got is none. */
const isAnswered = (calls: Calls, call: FailedCall, turn: Turn): boolean => calls.isAfter(turn, call) && !turn.undelivered;

/** Of a rollout whose workflow returned, or that has none. */
export function outcomeByCalls(calls: Calls): Outcome {
  const { turns, unanswered } = calls;
  const latest = new Map(unanswered.filter(isFailed).map((call) => [seatOf(call), call]));
  const last = [...latest.values()].filter(
    (call) => !turns.some((turn) => isAnswered(calls, call, turn) && seatOf(turn) === seatOf(call)),
  );
  const word = last.find(({ failure }) => failure.limit === undefined) ?? last[0];
  const { code = '', message = '', limit } = word?.failure ?? {};
  if (limit !== undefined) return { kind: 'truncated', limit };
  if (word) return { kind: 'failed', code, message: `the last model call of ${word.thread} failed: ${message}` };
  return turns.length === 0 ? { kind: 'rejected', reason: 'no_turns' } : { kind: 'completed' };
}

/**
 * The limit that made a workflow throw: the one whose refusal it threw, by its code; else the one that its latest call ran into, since
 * frameworks and other processes throw something of their own. What is thrown after an answer is no limit's doing.
 */
export function limitBehind(code: string, calls: Calls): LimitName | undefined {
  const { turns, unanswered } = calls;
  const failed = unanswered.filter(isFailed);
  const [thrown, latest] = [failed.findLast(({ failure }) => failure.limit && failure.code === code), failed.at(-1)];
  if (thrown !== undefined || latest === undefined) return thrown?.failure.limit;
  return turns.some((turn) => isAnswered(calls, latest, turn)) ? undefined : latest.failure.limit;
}
