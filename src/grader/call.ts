/**
 * One grading: what a grader sees of a finished rollout, one call of it, and trying again.
 *
 * `callGrader` is the only place that turns what a grader does into a `Grade`, and the one check of what it returns; it runs in the child
 * process of the pool, and in this process for an inline grader. It never rejects and does not bound time: the runner around it does.
 */
import type { Grader, GraderContext, GraderInput, GraderModel, GraderTurn, Ungraded, WorkflowResult } from '../core/contracts.ts';
import { describeThrown, kindOf } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined, isObject } from '../core/json.ts';
import { toReward } from '../core/reward.ts';
import type { Grade, Message, Task, Trajectory, Turn } from '../core/types.ts';

/** What a grading process is asked. */
export interface GraderCall {
  readonly input: GraderInput;
  readonly model: GraderModel | undefined;
}

/** A failure is stored with its rollout. */
const shortWhy = (why: string): string => (why.length <= 2000 ? why : `${why.slice(0, 2000)}…`);

/** Throws GRADER_INVALID where it is none. `where` begins the message. */
export function checkGrader(given: unknown, where: string): asserts given is Grader {
  if (isObject(given) && typeof given['grade'] === 'function') return;
  const isFunction = typeof given === 'function';
  const found = isFunction && given.name ? `the function ${given.name}` : isFunction ? 'a function' : kindOf(given).toLowerCase();
  const called = 'call what makes a grader, such as exactMatch(); wrap what grades in defineGrader(…)';
  const hint = isFunction ? called : 'make one with defineGrader(…)';
  throw new TrainyardError('GRADER_INVALID', `${where}: expected a grader, found ${found}`, { hint });
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

/** Undefined where a grader's result says something else than that there is nothing to grade. */
export function ungradedOf(result: unknown): Ungraded | undefined {
  if (typeof result !== 'object' || result === null || !('kind' in result) || result.kind !== 'ungraded') return undefined;
  return { kind: 'ungraded', why: 'why' in result ? shortWhy(String(result.why)) : 'the grader gave no reward' };
}

/** Undefined for what is none of our errors. */
function ownFailure(thrown: unknown, boundary?: 'grader'): Grade | undefined {
  if (!(thrown instanceof TrainyardError) || (boundary !== undefined && thrown.boundary !== boundary)) return undefined;
  return { kind: 'failed', code: thrown.code, message: shortWhy(thrown.message) };
}

export function failed(message: string): Grade {
  return { kind: 'failed', code: 'GRADER_FAILED', message };
}

// ── trying again ────────────────────────────────────────────────────────────────────────────────────────────────────────

export const DEFAULT_RETRIES = 1;
/** For one attempt. */
export const DEFAULT_DEADLINE_MS = 30_000;

export interface Attempt {
  readonly grade: Grade;
  /** Whether another attempt may do better. */
  readonly mayPass: boolean;
}

/**
 * Tries again what failed for a reason that may pass: a throw, a crash, a timeout. What the grader said on purpose (a reward, nothing to
 * grade, cannot be scored) is never asked twice, and neither is a result that is no reward. The failure that remains names all reasons.
 */
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

/** Whether a failure that the grader itself made may pass. */
export function mayPass(grade: Grade): boolean {
  return grade.kind === 'failed' && (grade.code === 'GRADER_FAILED' || grade.code === 'GRADER_TIMEOUT');
}

export function timedOut(deadlineMs: number): Grade {
  return { kind: 'failed', code: 'GRADER_TIMEOUT', message: `the grader did not answer within ${deadlineMs} ms` };
}

export function cancelled(): Grade {
  return { kind: 'failed', code: 'CANCELLED', message: 'the grader was closed before it answered' };
}

/** Throws USAGE for what is no number of retries. */
export function checkedRetries(retries: number): number {
  if (Number.isSafeInteger(retries) && retries >= 0) return retries;
  throw new TrainyardError('USAGE', `retries is ${retries}, expected a whole number from 0 up`);
}

function inWords(reasons: readonly string[]): string {
  const times = `tried ${reasons.length} times`;
  return new Set(reasons).size === 1 ? `${times}, each time: ${reasons[0]}` : `${times}: ${reasons.join('; then ')}`;
}

// ── what a grader sees ──────────────────────────────────────────────────────────────────────────────────────────────────

interface FinishedRollout extends Pick<Trajectory, 'turns' | 'outcome'> {
  readonly result?: WorkflowResult;
  readonly artifactsDir?: string | null;
}

/**
 * A rollout may hold several conversations. `messages` is the one of the last turn that a trainable role completed, because the policy's last
 * word is what is being scored; where no role is trainable, that of the last turn. The answers of all threads are in `turns`, in order of
 * completion. Without any turn `messages` is empty rather than the prompt, so that no grader scores the question.
 */
export function graderInput(task: Task, { turns, outcome, result = {}, artifactsDir = null }: FinishedRollout): GraderInput {
  // An answer that nobody got is the end of no conversation.
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

/** Without what is said elsewhere and would be sent again with every turn: the request, and the ids of the prompt. */
function graderTurn({ request: _request, promptIds, sampling: _sampling, ...turn }: Turn): GraderTurn {
  return { ...turn, promptTokens: promptIds.length };
}

/** What a grader is told of a workflow's result, its output aside. */
export function saidOfItself({ reward, success, metadata, metrics }: WorkflowResult): GraderInput['result'] {
  return defined({ reward, success, metadata, metrics });
}

/**
 * The conversation that a turn ended, in one shape whatever client, dialect or framework the agent used: the fields that messages have here
 * and no others, a message that only calls tools without content, and what the policy said in its own words.
 *
 * Clients send back what the policy said, and some write it anew on the way: arguments as objects, say. Where a turn goes on from another's
 * very ids, that turn's recorded answer is what the policy said. Where it does not, the message stays as the client sent it: it is what the
 * policy was shown. Nothing is guessed, left out or put in another order.
 */
function conversationOf(turn: Turn, turns: readonly Turn[]): readonly Message[] {
  const messages = [...turn.request.messages];
  const earlier = ({ after }: Turn) => (after === undefined ? undefined : turns.find(({ index }) => index === after));
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
