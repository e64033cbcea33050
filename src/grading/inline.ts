/**
 * Runs a grader in this process, for closures, which a child process cannot import. `gradeOnce` is for unit tests of a grader: the same
 * path as in a run, but nothing is sampled or stored.
 *
 * An async grader that exceeds its deadline is abandoned with GRADER_TIMEOUT, and its late result ignored. A grader that computes without
 * awaiting cannot be stopped: it blocks this process, deadline included, until it returns (its result then still counts), and one that
 * exits or crashes takes this process with it. `warning` says so.
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
  readonly warning: string;
}

interface InlineGraderOptions {
  /** Per attempt. Default: 30 s. */
  readonly deadlineMs?: number;
  /** Retries after a failed grading. Default: 0. */
  readonly retries?: number;
}

export function inlineGrader(grader: Grader, options: InlineGraderOptions = {}): InlineGraderRunner {
  const deadlineMs = checkedDeadline(options.deadlineMs ?? DEFAULT_DEADLINE_MS);
  /** The abort reason is the grade of interrupted gradings. */
  const closing = new AbortController();
  const retries = checkedRetries(options.retries ?? 0);

  async function attempt(input: GraderInput, model?: GraderModel): Promise<Attempt> {
    if (closing.signal.aborted) return { grade: cancelled(), mayPass: false };
    let own: GraderInput;
    try {
      // A copy, as in the pool: a grader that modifies its input must not change what is stored and trained.
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
    warning: `grader ${JSON.stringify(grader.name)} runs inside this process: if it loops without awaiting, or exits, so does the run; export it from a module to have it run in a child process that can be killed`,
    grade: (input, model) => withRetries(retries, () => attempt(input, model)),
    async [Symbol.asyncDispose]() {
      closing.abort(cancelled());
    },
  };
}

export interface GradedCase {
  /** The policy's final response: short for `messages` with the prompt and this response. */
  readonly said?: string;
  readonly messages?: readonly Message[];
  /** Every conversation by thread. Default: `messages` as the thread `default`. */
  readonly threads?: GraderInput['threads'];
  readonly prompt?: string | readonly PromptMessage[];
  readonly answer?: Json;
  readonly metadata?: Json;
  readonly taskId?: string;
  readonly output?: Json;
  readonly result?: GraderInput['result'];
  /** Default: one turn for each assistant message, without tokens. */
  readonly turns?: GraderInput['turns'];
  readonly truncated?: GraderInput['truncated'];
  readonly artifactsDir?: string | null;
  readonly model?: GraderModel;
}

const FIELDS = 'said messages threads prompt answer metadata taskId output result turns truncated artifactsDir model'.split(' ');

/** Throws GRADER_INVALID for an invalid grader and USAGE for an impossible case, but never for what the grader does. */
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
      id: given.taskId ?? 'task',
      prompt,
      ...defined({ answer, metadata }),
    },
    messages,
    threads,
    turns: given.turns ?? turnsOf(messages),
    output: given.output,
    result: given.result ?? {},
    truncated: given.truncated,
    artifactsDir: given.artifactsDir ?? null,
  };
}

function turnsOf(messages: readonly Message[]): GraderInput['turns'] {
  const said = messages.filter(({ role }) => role === 'assistant');
  return said.map((response, index) => ({ index, role: 'default', thread: 'default', stopReason: 'stop', response }));
}

function wrong(message: string): TrainyardError {
  return new TrainyardError('USAGE', message, "write gradeOnce(grader, { said: '4', answer: 4 })");
}
