/**
 * Runs a grader in this process: for closures, which cannot be imported by a child process.
 *
 * Contract: an asynchronous grader that overruns its deadline is abandoned with GRADER_TIMEOUT and its late answer ignored.
 * What it cannot do: stop a grader that computes without awaiting. That blocks this whole process, deadline included, until it
 * returns (its answer then still counts), and a grader that exits or crashes takes this process along. `warning` says so.
 *
 * `gradeOnce` is for unit tests of a grader: the same path as in a run, and nothing is sampled or stored.
 */
import { deadlineSignal, orAborted } from '../core/async.ts';
import type { Grader, GraderInput, GraderModel, GraderRunner } from '../core/contracts.ts';
import { describeThrown, describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { deepCopy, defined } from '../core/json.ts';
import type { Grade, Json, Message, PromptMessage } from '../core/types.ts';
import { checkedDeadline } from '../processes/limits.ts';
import {
  type Attempt,
  callGrader,
  cancelled,
  checkedRetries,
  checkGrader,
  DEFAULT_DEADLINE_MS,
  failed,
  mayPass,
  timedOut,
  withRetries,
} from './call.ts';

export interface InlineGraderRunner extends GraderRunner {
  readonly killable: false;
  /** For the run to show once. */
  readonly warning: string;
}

interface InlineGraderOptions {
  /** Per grading. Default 30 s. */
  readonly deadlineMs?: number;
  /** How often a grading that failed is tried again. Default: never. */
  readonly retries?: number;
}

export function inlineGrader(grader: Grader, options: InlineGraderOptions = {}): InlineGraderRunner {
  const deadlineMs = checkedDeadline(options.deadlineMs ?? DEFAULT_DEADLINE_MS);
  /** Its reason is the grade of what is cut off. */
  const closing = new AbortController();
  const retries = checkedRetries(options.retries ?? 0);

  async function attempt(input: GraderInput, model?: GraderModel): Promise<Attempt> {
    if (closing.signal.aborted) return { grade: cancelled(), mayPass: false };
    let own: GraderInput;
    try {
      // A copy, as the pool's children get: a grader that changes its input must not change what is stored and trained.
      own = deepCopy(input);
    } catch (thrown) {
      return { grade: failed(`the grader's input cannot be copied: ${describeThrown(thrown)}`), mayPass: false };
    }
    using deadline = deadlineSignal(deadlineMs, () => timedOut(deadlineMs), closing.signal);
    const { signal } = deadline;
    const grade = await orAborted(callGrader(grader, own, { signal, model }), signal).catch(() => signal.reason as Grade);
    return { grade, mayPass: mayPass(grade) };
  }

  return {
    killable: false,
    warning: `grader ${JSON.stringify(grader.name)} runs inside this process: if it loops without awaiting, or exits, so does the run; export it from a module to have it run in a child process that can be killed`,
    grade: (input, model) => withRetries(retries, () => attempt(input, model)),
    async [Symbol.asyncDispose]() {
      closing.abort(cancelled());
    },
  };
}

// ── one grading of what you say an agent did ────────────────────────────────────────────────────────────────────────────

export interface GradedCase {
  /** What the policy said last: short for `messages` with the prompt and this answer. */
  readonly said?: string;
  /** The whole conversation, where it is more than that. */
  readonly messages?: readonly Message[];
  /** Every conversation by thread; absent: `messages`, as the thread `default`. */
  readonly threads?: GraderInput['threads'];
  /** What was asked. */
  readonly prompt?: string | readonly PromptMessage[];
  readonly answer?: Json;
  readonly metadata?: Json;
  readonly taskId?: string;
  /** What the workflow returned. */
  readonly output?: Json;
  readonly result?: GraderInput['result'];
  /** Absent: one turn for each message of the assistant, without tokens. */
  readonly turns?: GraderInput['turns'];
  readonly truncated?: GraderInput['truncated'];
  readonly artifactsDir?: string | null;
  /** For a grader that asks a model. */
  readonly model?: GraderModel;
}

const FIELDS = 'said messages threads prompt answer metadata taskId output result turns truncated artifactsDir model'.split(' ');

/** Throws GRADER_INVALID for what is no grader and USAGE for a case that no rollout could be; never for what the grader does. */
export async function gradeOnce(grader: Grader, given: GradedCase): Promise<Grade> {
  checkGrader(grader, 'gradeOnce');
  const input = inputOf(given);
  await using runner = inlineGrader(grader, defined({ deadlineMs: grader.deadlineMs }));
  return await runner.grade(input, given.model);
}

function inputOf(given: GradedCase): GraderInput {
  const found: unknown = given;
  if (typeof found !== 'object' || found === null)
    throw wrong(`gradeOnce got ${describeValue(found)} for a case, expected an object`);
  const unknown = Object.keys(given).filter((name) => !FIELDS.includes(name));
  if (unknown.length > 0) throw wrong(`gradeOnce knows no ${unknown.join(', ')}; expected some of ${FIELDS.join(', ')}`);
  const { said, answer, metadata } = given;
  if (said !== undefined && given.messages !== undefined)
    throw wrong('gradeOnce got both said and messages; expected one of them');
  const prompt: readonly PromptMessage[] =
    typeof given.prompt === 'string' ? [{ role: 'user', content: given.prompt }] : (given.prompt ?? []);
  const messages = given.messages ?? (said === undefined ? [] : [...prompt, { role: 'assistant' as const, content: said }]);
  const threads = given.threads ?? (messages.length === 0 ? {} : { default: messages });
  return {
    task: {
      ...{ id: given.taskId ?? 'task', prompt },
      ...defined({ answer, metadata }),
    },
    ...{ messages, threads },
    turns: given.turns ?? turnsOf(messages),
    output: given.output,
    result: given.result ?? {},
    truncated: given.truncated,
    artifactsDir: given.artifactsDir ?? null,
  };
}

function turnsOf(messages: readonly Message[]): GraderInput['turns'] {
  const said = messages.filter(({ role }) => role === 'assistant');
  return said.map((response, index) => ({ ...{ index, role: 'default', thread: 'default', stopReason: 'stop' }, response }));
}

function wrong(message: string): TrainyardError {
  return new TrainyardError('USAGE', message, { hint: "write gradeOnce(grader, { said: '4', answer: 4 })" });
}
