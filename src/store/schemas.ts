/**
 * Schemas of every record a store keeps. Checked on write and again on read, so that whatever was acknowledged can be read. They only
 * check: callers keep the value they passed in, including fields unknown to this version.
 */
import { z } from 'zod';
import {
  type BatchManifest,
  DIALECT_NAMES,
  FORK_CAUSES,
  type Json,
  LIMIT_NAMES,
  type Mark,
  type Message,
  type Tool,
  type Trajectory,
  type Turn,
  type UnansweredCall,
} from '../core/types.ts';

/** SQL text is UTF-8: a lone surrogate would change the id. */
const id = z
  .string()
  .min(1, 'expected a non-empty id')
  .refine((value) => value.isWellFormed(), 'expected an id without lone surrogates');

const natural = z.int().min(0);
const optional = z.exactOptional;

/** Already known to be JSON here: parsed from text, or copied by `plainJson`. */
const json = z.custom<Json>((value) => value !== undefined, 'expected JSON');

const toolCall = z.object({
  id: z.string(),
  type: z.literal('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
});

const message: z.ZodType<Message> = z.object({
  role: z.enum(['system', 'user', 'assistant', 'tool']),
  content: z.string().nullable(),
  tool_calls: optional(z.array(toolCall)),
  tool_call_id: optional(z.string()),
  name: optional(z.string()),
  reasoning: optional(z.string()),
});

const tool: z.ZodType<Tool> = z.object({
  type: z.literal('function'),
  function: z.object({ name: z.string(), description: optional(z.string()), parameters: optional(json) }),
});

/** Items already checked in the current record. */
const found = new Set<unknown>();

/** Consecutive turns repeat earlier messages as the same objects. Checking each object once per record is far cheaper. */
function listOf<T>(item: z.ZodType<T>): z.ZodType<readonly T[]> {
  const list = z.array(item);
  return z.custom<readonly T[]>().superRefine((value: unknown, context) => {
    const refuse = (error: z.ZodError, ...at: readonly number[]): void => {
      for (const issue of error.issues) context.addIssue({ ...issue, path: [...at, ...issue.path], continue: false });
    };
    if (!Array.isArray(value)) return refuse(list.safeParse(value).error!);
    for (const [place, one] of value.entries()) {
      if (found.has(one)) continue;
      const { error } = item.safeParse(one);
      if (error) refuse(error, place);
      else found.add(one);
    }
  });
}

const settings = <T extends z.ZodType>(number: T) =>
  z.object({ temperature: number, topP: number, topK: number, maxTokens: number });

const cause = z.enum(FORK_CAUSES);

const turn: z.ZodType<Turn> = z
  .object({
    index: natural,
    after: optional(natural),
    fork: optional(z.object({ cause, also: optional(z.array(cause)), from: natural, message: optional(natural) })),
    thread: z.string(),
    role: z.string(),
    trainable: z.boolean(),
    model: optional(z.string()),
    usage: optional(z.object({ promptTokens: natural, completionTokens: natural })),
    undelivered: optional(z.literal(true)),
    promptIds: z.instanceof(Int32Array),
    sampledIds: z.instanceof(Int32Array),
    logprobs: z.instanceof(Float32Array),
    policyVersion: natural,
    stopReason: z.enum(['stop', 'length']),
    constrained: optional(z.object({ format: optional(json), tool: optional(z.string()) })),
    sampling: z.object({ requested: settings(optional(z.number())), effective: settings(z.number()), seed: z.int() }),
    request: z.object({
      dialect: optional(z.enum(DIALECT_NAMES)),
      messages: listOf(message),
      tools: listOf(tool),
      ignored: optional(z.array(z.string())),
    }),
    response: message,
    formatError: optional(z.string()),
    startedAt: z.number(),
    endedAt: z.number(),
  })
  .refine((value) => value.logprobs.length === value.sampledIds.length, 'expected one log-probability per sampled id');

const unanswered: z.ZodType<UnansweredCall> = z.object({
  thread: z.string(),
  role: z.string(),
  promptTokens: natural,
  sampledTokens: natural,
  turnsBefore: natural,
  failure: optional(z.object({ code: z.string(), message: z.string(), limit: optional(z.enum(LIMIT_NAMES)) })),
  startedAt: z.number(),
  endedAt: z.number(),
});

const outcome: z.ZodType<Trajectory['outcome']> = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('completed') }),
  z.object({ kind: z.literal('truncated'), limit: z.enum(LIMIT_NAMES) }),
  z.object({ kind: z.literal('rejected'), reason: z.string() }),
  z.object({ kind: z.literal('failed'), code: z.string(), message: z.string() }),
]);
const numbers = optional(z.record(z.string(), z.number()));
const credit = optional(z.object({ turnDiscount: z.number(), per: z.enum(['turn', 'row']) }));

const reward = z.object({
  value: z.number(),
  success: optional(z.boolean()),
  parts: numbers,
  metrics: numbers,
  byTurn: numbers,
  byThread: numbers,
  byRole: numbers,
  untrained: optional(z.array(z.string())),
  credit,
  source: optional(z.literal('workflow')),
});

const grade: z.ZodType<Trajectory['grade']> = z.discriminatedUnion('kind', [
  z.object({ kind: z.literal('graded'), reward }),
  z.object({ kind: z.literal('ungraded'), why: z.string() }),
  z.object({ kind: z.literal('failed'), code: z.string(), message: z.string() }),
]);

export const trajectorySchema: z.ZodType<Trajectory> = z.object({
  rolloutId: id,
  groupId: id,
  taskId: id,
  purpose: z.enum(['train', 'eval']),
  outcome,
  grade,
  turns: z.array(turn),
  unanswered: optional(z.array(unanswered)),
  output: optional(json),
  returned: optional(
    z.object({ reward: optional(reward), success: optional(z.boolean()), credit, untrained: optional(z.array(natural)) }),
  ),
  metadata: optional(z.record(z.string(), json)),
  metrics: numbers,
  logs: optional(z.array(z.object({ at: z.number(), text: z.string(), from: optional(z.enum(['workflow', 'grader'])) }))),
  startedAt: z.number(),
  endedAt: z.number(),
});

export const manifestSchema: z.ZodType<BatchManifest> = z.object({
  step: z.int().min(1),
  policyVersion: z.int().min(1),
  rolloutIds: z.array(id),
  excluded: optional(z.array(z.object({ rolloutId: id, turn: optional(natural) }))),
  batchId: optional(z.string()),
  stale: optional(z.strictObject({ policyVersion: natural, most: natural, rule: z.enum(['drop', 'weigh', 'keep']) })),
  checkpoint: z.string().nullable(),
  digests: optional(z.object({ samples: z.string(), weights: optional(z.string()) })),
  groups: z.object({ next: z.int().min(1), pending: z.array(z.int().min(1)) }),
  metrics: z.record(z.string(), z.number()),
  createdAt: z.number(),
});

export const markSchema: z.ZodType<Mark> = z.object({
  rolloutId: id,
  turn: optional(natural),
  excluded: z.boolean(),
  reason: z.string().min(1, 'expected a reason').max(2000, 'expected at most 2000 characters'),
  at: z.number(),
});

export const filterSchema = z.object({ limit: z.optional(natural) });

/** Describes the first problem in one line; undefined if the value fits. */
export function misfitOf(schema: z.ZodType, value: unknown): string | undefined {
  found.clear();
  const issue = schema.safeParse(value).error?.issues[0];
  found.clear();
  if (issue === undefined) return undefined;
  return issue.path.length === 0 ? issue.message : `${issue.path.join('.')}: ${issue.message}`;
}
