/**
 * One grading: a grader's input from a finished rollout, one call of the grader, and retries.
 *
 * `callGrader` is the only place that turns a grader's behaviour into a `Grade` and validates what it returns. It runs in the pool's child
 * process, or in this process for an inline grader. It never rejects and sets no deadline: the runner around it does.
 */
import type { Grader, GraderContext, GraderInput, GraderModel, GraderTurn, Ungraded, WorkflowResult } from '../core/contracts.ts';
import { describeThrown, kindOf } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined, isObject } from '../core/json.ts';
import { toReward } from '../core/reward.ts';
import type { Grade, Message, Task, Trajectory, Turn } from '../core/types.ts';

export interface GraderCall {
  readonly input: GraderInput;
  readonly model: GraderModel | undefined;
}

/** Truncated, because failures are stored with their rollouts. */
const shortWhy = (why: string) => (why.length <= 2000 ? why : `${why.slice(0, 2000)}…`);

/** Throws GRADER_INVALID if the value is not a grader. `where` starts the message. */
export function checkGrader(given: unknown, where: string): asserts given is Grader {
  if (isObject(given) && typeof given['grade'] === 'function') return;
  const isFunction = typeof given === 'function';
  const found = isFunction && given.name ? `the function ${given.name}` : isFunction ? 'a function' : kindOf(given).toLowerCase();
  const called = 'call what makes a grader, such as exactMatch(); wrap what grades in defineGrader(…)';
  const hint = isFunction ? called : 'make one with defineGrader(…)';
  throw new TrainyardError('GRADER_INVALID', `${where}: expected a grader, found ${found}`, hint);
}

export async function callGrader(grader: Grader, input: GraderInput, ctx: GraderContext): Promise<Grade> {
  let result: unknown;
  try {
    result = await grader.grade(input, ctx);
  } catch (thrown) {
    return ownFailure(thrown, 'grader') ?? failed(`the grader threw ${describeThrown(thrown)}`);
  }
  try {
    const nothing = ungradedOf(result);
    if (nothing !== undefined) return nothing;
    return { kind: 'graded', reward: toReward(result, 'the grader', input.turns.length) };
  } catch (refusal) {
    return ownFailure(refusal) ?? failed(`reading the grader's result threw ${describeThrown(refusal)}`);
  }
}

/** Undefined unless the grader returned `Ungraded`. */
export function ungradedOf(result: unknown): Ungraded | undefined {
  if (typeof result !== 'object' || result === null || !('kind' in result) || result.kind !== 'ungraded') return undefined;
  return { kind: 'ungraded', why: 'why' in result ? shortWhy(String(result.why)) : 'the grader gave no reward' };
}

function ownFailure(thrown: unknown, boundary?: 'grader'): Grade | undefined {
  if (!(thrown instanceof TrainyardError) || (boundary !== undefined && thrown.boundary !== boundary)) return undefined;
  return { kind: 'failed', code: thrown.code, message: shortWhy(thrown.message) };
}

export function failed(message: string): Grade {
  return { kind: 'failed', code: 'GRADER_FAILED', message };
}

/** Per attempt. */
export const DEFAULT_DEADLINE_MS = 30_000;

export interface Attempt {
  readonly grade: Grade;
  readonly mayPass: boolean;
}

/** Retries a throw, crash or timeout; never a grader's decision or an invalid reward. The final failure lists all reasons. */
export async function withRetries(retries: number, attempt: () => Promise<Attempt>): Promise<Grade> {
  const reasons: string[] = [];
  for (;;) {
    const { grade, mayPass } = await attempt();
    if (grade.kind !== 'failed') return grade;
    reasons.push(grade.message);
    if (mayPass && reasons.length <= retries) continue;
    return reasons.length === 1 ? grade : { ...grade, message: inWords(reasons) };
  }
}

export function mayPass(grade: Grade): boolean {
  return grade.kind === 'failed' && (grade.code === 'GRADER_FAILED' || grade.code === 'GRADER_TIMEOUT');
}

export function timedOut(deadlineMs: number): Grade {
  return { kind: 'failed', code: 'GRADER_TIMEOUT', message: `the grader did not answer within ${deadlineMs} ms` };
}

export function cancelled(): Grade {
  return { kind: 'failed', code: 'CANCELLED', message: 'the grader was closed before it answered' };
}

export function checkedRetries(retries: number): number {
  if (Number.isSafeInteger(retries) && retries >= 0) return retries;
  throw new TrainyardError('USAGE', `retries is ${retries}, expected a whole number from 0 up`);
}

function inWords(reasons: readonly string[]): string {
  const times = `tried ${reasons.length} times`;
  return new Set(reasons).size === 1 ? `${times}, each time: ${reasons[0]}` : `${times}: ${reasons.join('; then ')}`;
}

interface FinishedRollout extends Pick<Trajectory, 'turns' | 'outcome'> {
  readonly result?: WorkflowResult;
  readonly artifactsDir?: string | null;
}

/**
 * Builds the grader's input. A rollout may hold several conversations: `messages` is that of the last turn by a trainable role, because the
 * policy's final response is what is scored; if no role is trainable, that of the last turn. `turns` has the responses of all threads, in
 * order of completion. Without turns, `messages` is empty rather than the prompt, so that no grader scores the question.
 */
export function graderInput(task: Task, { turns, outcome, result = {}, artifactsDir = null }: FinishedRollout): GraderInput {
  // An undelivered response ends no conversation.
  const delivered = turns.filter(({ undelivered }) => !undelivered);
  const last = turns.findLast((turn) => turn.trainable) ?? delivered.at(-1);
  const lastOfThreads = new Map(delivered.map((turn) => [turn.thread, turn]));
  return {
    task,
    messages: last === undefined ? [] : conversationOf(last, turns),
    threads: Object.fromEntries([...lastOfThreads].map(([thread, turn]) => [thread, conversationOf(turn, turns)])),
    turns: turns.map(graderTurn),
    output: result.output,
    result: saidOfItself(result),
    truncated: outcome.kind === 'truncated' ? outcome.limit : undefined,
    artifactsDir,
  };
}

/** Drops what every turn would repeat: the request and the prompt ids. */
function graderTurn({ request: _request, promptIds, sampling: _sampling, ...turn }: Turn): GraderTurn {
  return { ...turn, promptTokens: promptIds.length };
}

export function saidOfItself({ reward, success, metadata, metrics }: WorkflowResult): GraderInput['result'] {
  return defined({ reward, success, metadata, metrics });
}

/**
 * The conversation that ends with a turn, in one shape for every client, dialect and framework: only the fields of `Message`, null content
 * for messages that only call tools, and the policy's own words. Some clients rewrite what the policy said before they send it back, for
 * example arguments as objects. If a turn continues another's exact ids, the recorded response replaces the message. Otherwise the message
 * stays as sent, because that is what the policy was shown. Nothing is guessed, dropped or reordered.
 */
function conversationOf(turn: Turn, turns: readonly Turn[]): readonly Message[] {
  const messages = [...turn.request.messages];
  // A stored turn may say that it follows itself.
  const earlier = ({ after, index: own }: Turn) => turns.find(({ index }) => index === after && index < own);
  for (let before = earlier(turn); before !== undefined; before = earlier(before)) {
    const place = before.request.messages.length;
    const sent = messages[place];
    if (sent !== undefined && isSame(sent, before.response)) messages[place] = before.response;
  }
  return [...messages, turn.response].map(plain);
}

function isSame(sent: Message, said: Message): boolean {
  const calls = said.tool_calls ?? [];
  return (
    sent.role === 'assistant' &&
    (sent.content ?? '') === (said.content ?? '') &&
    (sent.tool_calls ?? []).length === calls.length &&
    calls.every(({ id, function: { name } }, i) => {
      const other = sent.tool_calls?.[i];
      return other?.id === id && other.function.name === name;
    })
  );
}

function plain({ role, content, tool_calls: calls = [], tool_call_id, name, reasoning }: Message): Message {
  const isCalling = calls.length > 0;
  return {
    role,
    content: isCalling && !content ? null : (content ?? ''),
    ...(isCalling && { tool_calls: calls }),
    ...(typeof tool_call_id === 'string' && { tool_call_id }),
    ...(typeof name === 'string' && { name }),
    ...(typeof reasoning === 'string' && reasoning !== '' && { reasoning }),
  };
}
