/**
 * OpenAI Chat Completions, read into our nouns and written back.
 *
 * Reading is strict where silence would corrupt training; see `parameters.ts`. No I/O, no session state.
 */
import { z } from 'zod';
import { isObject } from '../../core/json.ts';
import type { Json, Message, Tool } from '../../core/types.ts';
import { openAIError } from '../wire-protocol.ts';
import { chatEvents, encodeChat } from './chat-writer.ts';
import {
  type Dialect,
  type ForcedCall,
  forcedCall,
  formatChecker,
  ignoredIn,
  invalid,
  is,
  isEmpty,
  never,
  type Parameters,
  parsed,
  type Question,
  refusal,
  requestedSampling,
  samplingFields,
  tokenLimit,
} from './dialect.ts';

export const chatParameters: Parameters = {
  honoured: [
    'messages',
    'model',
    'tools',
    'tool_choice',
    'temperature',
    'top_p',
    'top_k',
    'max_tokens',
    'max_completion_tokens',
    'n',
    'stop',
    'stream',
    'stream_options',
    'logprobs',
    'response_format',
  ],
  ignored: [
    'metadata',
    'parallel_tool_calls',
    'prompt_cache_key',
    'prompt_cache_retention',
    'reasoning_effort',
    'safety_identifier',
    'seed',
    'service_tier',
    'store',
    'user',
    'verbosity',
  ],
  refused: {
    audio: never,
    best_of: is(1),
    frequency_penalty: is(0),
    function_call: is('auto'),
    functions: isEmpty,
    logit_bias: isEmpty,
    min_p: is(0),
    min_tokens: is(0),
    modalities: (value) => Array.isArray(value) && value.every(is('text')),
    prediction: never,
    presence_penalty: is(0),
    repetition_penalty: is(1),
    stop_token_ids: isEmpty,
    top_logprobs: is(0),
    web_search_options: never,
  },
};

/** More answers than this to one question are refused: each is a turn. */
const MOST_CHOICES = 128;
const MOST_STOPS = 16;

const part = z.looseObject({ type: z.string(), text: z.string().nullish(), refusal: z.string().nullish() });
const text = z.union([z.string(), z.array(part)], { error: 'expected a text or a list of text parts' });
const content = text.nullish();
const toolCall = z.object({
  id: z.string().default(''),
  type: z.literal('function').default('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
});
const message = z.discriminatedUnion('role', [
  z.object({ role: z.enum(['system', 'developer', 'user']), content: text, name: z.string().nullish() }),
  z.object({
    role: z.literal('assistant'),
    content,
    tool_calls: z.array(toolCall).nullish(),
    name: z.string().nullish(),
    reasoning_content: z.string().nullish(),
    reasoning: z.string().nullish(),
  }),
  z.object({ role: z.literal('tool'), content, tool_call_id: z.string().nullish(), name: z.string().nullish() }),
]);
/** What came out of a JSON text is JSON; to look at all of it again would cost more than to read it. */
const parsedJson = z.custom<Json>((value) => value !== undefined);
const tool = z.object({
  type: z.literal('function'),
  function: z.object({ name: z.string().min(1), description: z.string().nullish(), parameters: parsedJson.nullish() }),
});
const stopText = z.string().min(1);
const body = z.object({
  messages: z.array(message).min(1),
  model: z.string().max(256).nullish(),
  tools: z.array(tool).nullish(),
  tool_choice: z.unknown().optional(),
  ...samplingFields,
  max_tokens: tokenLimit,
  max_completion_tokens: tokenLimit,
  n: z.int().min(1).max(MOST_CHOICES).nullish(),
  stop: z.union([stopText, z.array(stopText).max(MOST_STOPS)]).nullish(),
  stream: z.boolean().nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
  logprobs: z.boolean().nullish(),
  response_format: z.unknown().optional(),
});

const withoutMessages = body.omit({ messages: true });

export const chat: Dialect = {
  name: 'chat',
  read(raw) {
    const wire = wireOf(raw);
    if (wire.stream_options && !wire.stream) throw invalid('stream_options', 'only allowed where `stream` is true');
    const includeUsage = wire.stream_options?.include_usage ?? false;
    const question: Question = { messages: wire.messages.map(toMessage), ...restOf(wire, raw) };
    return {
      question,
      writer: {
        whole: (turns, head) => encodeChat(turns, head, question.logprobs),
        events: (head) => chatEvents(head, { count: question.count, includeUsage, logprobs: question.logprobs }),
      },
    };
  },
  failure: openAIError,
};

type Wire = z.infer<typeof body>;
type Rest = Omit<Question, 'messages'>;

/** All but the messages, for a question that has none. */
export function readWithoutMessages(raw: unknown): Rest {
  return restOf(parsed(withoutMessages, raw), raw);
}

function restOf(wire: Omit<Wire, 'messages'>, raw: unknown): Rest {
  const tools = toolsOf(wire);
  return {
    tools,
    forced: forcedOf(wire.tool_choice, tools),
    requested: requestedSampling(wire, limitOf(wire)),
    count: wire.n ?? 1,
    stopTexts: typeof wire.stop === 'string' ? [wire.stop] : (wire.stop ?? []),
    stream: wire.stream ?? false,
    logprobs: wire.logprobs ?? false,
    ignored: ignoredIn(raw as object, chatParameters),
    formatErrorOf: formatOf(wire.response_format),
  };
}

function wireOf(raw: unknown): Wire {
  const { messages } = (raw ?? {}) as { readonly messages?: unknown };
  return areUsual(messages) ? { ...parsed(withoutMessages, raw), messages: messages as Wire['messages'] } : parsed(body, raw);
}

function limitOf({ max_tokens, max_completion_tokens }: Omit<Wire, 'messages'>): number | null | undefined {
  if (max_tokens != null && max_completion_tokens != null) {
    throw invalid('max_tokens', 'given together with `max_completion_tokens`', 'give one of them');
  }
  return max_completion_tokens ?? max_tokens;
}

/** `none` is honoured by not showing the policy any tools. */
function toolsOf({ tools, tool_choice: choice }: Omit<Wire, 'messages'>): readonly Tool[] {
  if (choice === 'none') return [];
  return (tools ?? []).map(({ function: { name, description, parameters } }) => ({
    type: 'function',
    function: { name, ...(description == null ? {} : { description }), ...(parameters == null ? {} : { parameters }) },
  }));
}

function forcedOf(choice: unknown, tools: readonly Tool[]): ForcedCall | undefined {
  if (choice == null || choice === 'auto' || choice === 'none') return undefined;
  if (choice === 'required') return forcedCall(undefined, tools);
  const { type, function: named } = choice as { type?: unknown; function?: { name?: unknown } | null };
  if (type === 'function') return forcedCall(named?.name ?? null, tools);
  throw refusal('tool_choice', choice, 'use "auto", "none", "required" or { type: "function", function: { name } }');
}

function formatOf(format: unknown): Question['formatErrorOf'] {
  if (format == null) return undefined;
  const { type, json_schema: named } = format as { type?: unknown; json_schema?: { schema?: unknown } };
  if (type === 'text') return undefined;
  if (type === 'json_object') return formatChecker(undefined, 'response_format');
  if (type === 'json_schema') return formatChecker(named?.schema, 'response_format.json_schema.schema');
  throw refusal('response_format', format, 'use "text", "json_object" or "json_schema"');
}

function toMessage(wire: z.infer<typeof message>, place: number): Message {
  const at = `messages.${place}.content`;
  if (wire.role === 'assistant') {
    const calls = wire.tool_calls ?? [];
    const reasoning = wire.reasoning_content ?? wire.reasoning;
    if (wire.content == null && calls.length === 0) throw invalid(at, 'expected a text, since there are no tool calls');
    return {
      role: 'assistant',
      content: textOf(wire.content, '', at),
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
      ...(reasoning ? { reasoning } : {}),
    };
  }
  const said = textOf(wire.content, '\n', at);
  const name = wire.name ? { name: wire.name } : {};
  if (wire.role !== 'tool') return { role: wire.role === 'developer' ? 'system' : wire.role, content: said, ...name };
  return { role: 'tool', content: said, ...(wire.tool_call_id ? { tool_call_id: wire.tool_call_id } : {}), ...name };
}

function textOf(given: z.infer<typeof content>, separator: string, at: string): string | null {
  if (given == null || typeof given === 'string') return given ?? null;
  const texts = given.map(({ type, text: said, refusal: refused }, i) => {
    if (type === 'text') return said ?? '';
    if (type === 'refusal') return refused ?? '';
    throw refusal(`${at}.${i}.type`, type, 'the policy reads text');
  });
  return texts.join(separator);
}

// From usual-messages.ts: Recognises Chat messages in the form that nearly all clients send them: text as a string, calls with exactly the fields they have.
//
// A conversation is read anew with every turn, and the schema costs more than everything else that is done with its words. What is
// recognised here is what the schema accepts and leaves as it is; anything else is the schema's to judge and to explain.

export function areUsual(messages: unknown): boolean {
  return Array.isArray(messages) && messages.length > 0 && messages.every(isUsual);
}

/** Fields that no one reads may hold anything, as in the schema. */
function isUsual(message: unknown): boolean {
  if (!isObject(message)) return false;
  const { role, content, name, tool_calls: calls } = message;
  if (name != null && typeof name !== 'string') return false;
  if (role === 'assistant') {
    const { reasoning, reasoning_content: thought } = message;
    if ((reasoning != null && typeof reasoning !== 'string') || (thought != null && typeof thought !== 'string')) return false;
    const isCalling = Array.isArray(calls) && calls.length > 0 && calls.every(isUsualCall);
    return typeof content === 'string' ? calls == null || isCalling : content == null && isCalling;
  }
  if (role === 'tool') return isText(content) && (message['tool_call_id'] == null || typeof message['tool_call_id'] === 'string');
  return (role === 'system' || role === 'user' || role === 'developer') && typeof content === 'string';
}

const isText = (content: unknown): boolean => content == null || typeof content === 'string';

/** Calls are kept as they are, so one with a field more or less is not usual. */
function isUsualCall(call: unknown): boolean {
  if (!isObject(call) || typeof call['id'] !== 'string' || call['type'] !== 'function' || !isObject(call['function']))
    return false;
  const { name, arguments: given } = call['function'];
  const fields = Object.keys(call).length === 3 && Object.keys(call['function']).length === 2;
  return fields && typeof name === 'string' && typeof given === 'string';
}
