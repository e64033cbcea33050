/**
 * `gradeOnce`: one grading of what you say an agent did, for unit tests of a grader. The same path as in a run: the grader gets a copy of
 * its input, under its deadline, and whatever it does becomes a `Grade`. Runs in this process; nothing is sampled or stored.
 */
import type { Grader, GraderInput, GraderModel } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { Grade, Json, Message, PromptMessage } from '../core/types.ts';
import { checkGrader } from '../graders/compose/component.ts';
import { inlineGrader } from './inline.ts';

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

const FIELDS: readonly (keyof GradedCase)[] = [
  ...(['said', 'messages', 'threads', 'prompt', 'answer', 'metadata', 'taskId', 'output', 'result', 'turns'] as const),
  ...(['truncated', 'artifactsDir', 'model'] as const),
];

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
  const unknown = Object.keys(given).filter((name) => !(FIELDS as readonly string[]).includes(name));
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
