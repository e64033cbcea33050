/**
 * Schemas of every record a store keeps. Checked on write and again on read, so that whatever was acknowledged can be read. They only
 * check: callers keep the value they passed in, including fields unknown to this version.
 */
import { z } from 'zod';
import { isObject, isPlain } from '../core/json.ts';
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
const positive = z.int().min(1);
const optional = z.exactOptional;
const optionalText = optional(z.string());

/** Already known to be JSON here: parsed from text, or written as such. */
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
  tool_call_id: optionalText,
  name: optionalText,
  reasoning: optionalText,
});

const tool: z.ZodType<Tool> = z.object({
  type: z.literal('function'),
  function: z.object({ name: z.string(), description: optionalText, parameters: optional(json) }),
});

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
    model: optionalText,
    usage: optional(z.object({ promptTokens: natural, completionTokens: natural })),
    undelivered: optional(z.literal(true)),
    promptIds: z.instanceof(Int32Array),
    sampledIds: z.instanceof(Int32Array),
    logprobs: z.instanceof(Float32Array),
    policyVersion: natural,
    stopReason: z.enum(['stop', 'length']),
    constrained: optional(z.object({ format: optional(json), tool: optionalText })),
    sampling: z.object({ requested: settings(optional(z.number())), effective: settings(z.number()), seed: z.int() }),
    request: z.object({
      dialect: optional(z.enum(DIALECT_NAMES)),
      messages: z.array(message),
      tools: z.array(tool),
      ignored: optional(z.array(z.string())),
    }),
    response: message,
    formatError: optionalText,
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
  step: positive,
  policyVersion: positive,
  rolloutIds: z.array(id),
  excluded: optional(z.array(z.object({ rolloutId: id, turn: optional(natural) }))),
  batchId: optionalText,
  stale: optional(z.strictObject({ policyVersion: natural, most: natural, rule: z.enum(['drop', 'weigh', 'keep']) })),
  checkpoint: z.string().nullable(),
  digests: optional(z.object({ samples: z.string(), weights: optionalText })),
  groups: z.object({ next: positive, pending: z.array(positive) }),
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
  const fits = quick.get(schema) ?? quickly(schema);
  quick.set(schema, fits);
  const isFitting = fits(value);
  known.clear();
  if (isFitting) return undefined;
  const issue = schema.safeParse(value).error?.issues[0];
  if (issue === undefined) return undefined;
  return issue.path.length === 0 ? issue.message : `${issue.path.join('.')}: ${issue.message}`;
}

// Nearly all records fit, and zod's way to find that out makes a fifth of the garbage of a rollout. What is derived from a schema here makes
// none. It knows only what the schemas above are made of and what JSON can hold (no undefined), and leaves the rest, and every no, to zod.

type Fits = (value: unknown) => boolean;

const quick = new WeakMap<z.ZodType, Fits>();

/** Items that fitted in the current record. Consecutive turns repeat earlier messages as the same objects: each is checked once. */
const known = new Map<unknown, Fits>();

function quickly(schema: z.core.$ZodType): Fits {
  const { def } = (schema as z.core.$ZodTypes)._zod;
  const checks = (def.checks ?? []).map((check) => (check as z.core.$ZodChecks | z.core.$ZodCustom)._zod.def);
  const refined = checks.map((check) => (check.check === 'custom' ? check.fn : undefined));
  const least = checks.map((check) => (check.check === 'greater_than' && check.inclusive ? Number(check.value) : Number.NaN));
  if (def.type === 'number' && 'format' in def && def.format === 'safeint' && !least.some(Number.isNaN)) {
    return (value) => Number.isSafeInteger(value) && least.every((from) => (value as number) >= from);
  }
  const fits = refined.includes(undefined) ? undefined : unrefined(def);
  if (fits === undefined) return (value) => z.safeParse(schema, value).success;
  return refined.length === 0 ? fits : (value) => fits(value) && refined.every((refines) => refines?.(value) === true);
}

function unrefined(def: z.core.$ZodTypes['_zod']['def']): Fits | undefined {
  if (def.type === 'string' || def.type === 'boolean') return (value) => typeof value === def.type;
  if (def.type === 'number' && !('format' in def)) return Number.isFinite;
  if (def.type === 'literal' || def.type === 'enum') {
    const allowed: readonly unknown[] = def.type === 'literal' ? def.values : Object.values(def.entries);
    return (value) => allowed.includes(value);
  }
  if (def.type === 'custom') return (value) => def.fn(value) === true;
  if (def.type === 'union') {
    const options = def.options.map(quickly);
    return (value) => options.some((fits) => fits(value));
  }
  if (def.type === 'nullable') {
    const fits = quickly(def.innerType);
    return (value) => value === null || fits(value);
  }
  if (def.type === 'array') {
    const fits = quickly(def.element);
    const isKnown: Fits = (item) => known.get(item) === fits || (fits(item) && known.set(item, fits) !== undefined);
    return (value) => Array.isArray(value) && value.every(isKnown);
  }
  if (def.type === 'record') {
    const fits = quickly(def.valueType);
    return (value) => isObject(value) && isPlain(value) && Object.values(value).every(fits);
  }
  return def.type === 'object' && def.catchall === undefined ? objectOf(def.shape) : undefined;
}

function objectOf(shape: z.core.$ZodShape): Fits {
  const fields = Object.entries(shape).map(([key, field]) => {
    const { def } = (field as z.core.$ZodTypes)._zod;
    return { key, isOptional: def.type === 'optional', fits: quickly(def.type === 'optional' ? def.innerType : field) };
  });
  return (value) => {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return false;
    for (const { key, isOptional, fits } of fields) {
      const found = (value as Readonly<Record<string, unknown>>)[key];
      if ((found !== undefined || !isOptional) && !fits(found)) return false;
    }
    return true;
  };
}
