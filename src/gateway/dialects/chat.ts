/**
 * OpenAI Chat Completions. Reading is strict where silence would corrupt training; see `Parameters`. Every turn reads the whole
 * conversation again, and schema validation costs more than the rest. Messages in the form that nearly all clients send are therefore
 * recognised by hand, if the schema would accept them unchanged. The schema handles all others.
 */
import { z } from 'zod';
import { isObject } from '../../core/json.ts';
import { tokensOf } from '../../core/turns.ts';
import type { Json, Message, Tool, Turn } from '../../core/types.ts';
import type { ChoicePiece, EventEncoder } from '../event-stream.ts';
import { gatewayFailure, openAIError } from '../wire-protocol.ts';
import {
  type AnswerHead,
  assistantMessage,
  commonFields,
  type Dialect,
  ignoredIn,
  invalid,
  is,
  isEmpty,
  logprobsOf,
  type ModelRequest,
  never,
  openAIFormat,
  openAIToolChoice,
  type Parameters,
  parsed,
  refusal,
  requestedSampling,
  serverSentEvent,
  stopTexts,
  tokenLimit,
  toolOf,
  type Writer,
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

/** Each completion is a turn; requests for more are refused. */
const MOST_CHOICES = 128;

const optionalText = z.string().nullish();
const part = z.looseObject({ type: z.string(), text: optionalText, refusal: optionalText });
const text = z.union([z.string(), z.array(part)], { error: 'expected a text or a list of text parts' });
const content = text.nullish();
const toolCall = z.object({
  id: z.string().default(''),
  type: z.literal('function').default('function'),
  function: z.object({ name: z.string(), arguments: z.string() }),
});
const message = z.discriminatedUnion('role', [
  z.object({ role: z.enum(['system', 'developer', 'user']), content: text, name: optionalText }),
  z.object({
    role: z.literal('assistant'),
    content,
    tool_calls: z.array(toolCall).nullish(),
    name: optionalText,
    reasoning_content: optionalText,
    reasoning: optionalText,
  }),
  z.object({ role: z.literal('tool'), content, tool_call_id: optionalText, name: optionalText }),
]);
/** The body was parsed from JSON; validating that again would cost more than reading it. */
const parsedJson = z.custom<Json>((value) => value !== undefined);
const tool = z.object({
  type: z.literal('function'),
  function: z.object({ name: z.string().min(1), description: optionalText, parameters: parsedJson.nullish() }),
});
const withoutMessages = z.object({
  ...commonFields,
  tools: z.array(tool).nullish(),
  tool_choice: z.unknown().optional(),
  max_tokens: tokenLimit,
  max_completion_tokens: tokenLimit,
  n: z.int().min(1).max(MOST_CHOICES).nullish(),
  stop: z.union([stopTexts.element, stopTexts]).nullish(),
  stream_options: z.object({ include_usage: z.boolean().nullish() }).nullish(),
  logprobs: z.boolean().nullish(),
  response_format: z.unknown().optional(),
});
const body = z.object({ messages: z.array(message).min(1), ...withoutMessages.shape });

type Wire = z.infer<typeof body>;
type Rest = Omit<Wire, 'messages'>;

export const chat: Dialect = {
  name: 'chat',
  read(raw) {
    const wire = wireOf(raw);
    if (wire.stream_options && !wire.stream) throw invalid('stream_options', 'only allowed where `stream` is true');
    const includeUsage = wire.stream_options?.include_usage ?? false;
    const request: ModelRequest = {
      messages: wire.messages.map(toMessage),
      ...restOf(wire, raw),
      chat: raw as ModelRequest['chat'],
    };
    const writer: Writer = {
      whole: (turns, head) => chatBody(turns, head, request.logprobs),
      events: (head) => chatEvents(head, request, includeUsage),
    };
    return { request, writer };
  },
  failure: openAIError,
};

/** For requests whose prompt is given as ids. */
export function readWithoutMessages(raw: unknown): Omit<ModelRequest, 'messages'> {
  return restOf(parsed(withoutMessages, raw), raw);
}

function restOf(wire: Rest, raw: unknown): Omit<ModelRequest, 'messages'> {
  const tools = toolsOf(wire);
  return {
    tools,
    forced: openAIToolChoice(wire.tool_choice, tools, 'chat'),
    requested: requestedSampling(wire, limitOf(wire)),
    count: wire.n ?? 1,
    stopTexts: [wire.stop ?? []].flat(),
    stream: wire.stream ?? false,
    logprobs: wire.logprobs ?? false,
    ignored: ignoredIn(raw as object, chatParameters),
    formatErrorOf: openAIFormat(wire.response_format, 'response_format', 'json_schema', 'schema'),
  };
}

function wireOf(raw: unknown): Wire {
  const { messages } = (raw ?? {}) as { readonly messages?: unknown };
  return areUsual(messages) ? { ...parsed(withoutMessages, raw), messages } : parsed(body, raw);
}

function limitOf({ max_tokens, max_completion_tokens }: Rest): number | null | undefined {
  if (max_tokens != null && max_completion_tokens != null) {
    throw invalid('max_tokens', 'given together with `max_completion_tokens`', 'give one of them');
  }
  return max_completion_tokens ?? max_tokens;
}

/** With the choice `none`, the policy is shown no tools. */
function toolsOf({ tools, tool_choice: choice }: Rest): readonly Tool[] {
  return choice === 'none' ? [] : (tools ?? []).map((one) => toolOf(one.function));
}

export function toMessage(wire: z.infer<typeof message>, index: number): Message {
  const at = `messages.${index}.content`;
  if (wire.role === 'assistant') {
    const calls = wire.tool_calls ?? [];
    if (wire.content == null && calls.length === 0) throw invalid(at, 'expected a text, since there are no tool calls');
    return assistantMessage(textOf(wire.content, '', at), calls, wire.reasoning_content ?? wire.reasoning);
  }
  const said = textOf(wire.content, '\n', at);
  const named = wire.name ? { name: wire.name } : {};
  if (wire.role !== 'tool') return { role: wire.role === 'developer' ? 'system' : wire.role, content: said, ...named };
  return { role: 'tool', content: said, ...(wire.tool_call_id ? { tool_call_id: wire.tool_call_id } : {}), ...named };
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

export function areUsual(messages: unknown): messages is Wire['messages'] {
  return Array.isArray(messages) && messages.length > 0 && messages.findIndex((one) => !isUsual(one)) === -1;
}

const isTextOrAbsent = (value: unknown): boolean => value == null || typeof value === 'string';

type WireFields = Readonly<Record<string, unknown>>;

/** Unread fields may hold anything, as in the schema. */
function isUsual(given: unknown): boolean {
  const wire = (given ?? {}) as WireFields;
  const { role, content: said, tool_calls: calls } = wire;
  if (!isTextOrAbsent(wire['name'])) return false;
  if (role === 'assistant') {
    if (!isTextOrAbsent(wire['reasoning']) || !isTextOrAbsent(wire['reasoning_content'])) return false;
    const isCalling = Array.isArray(calls) && calls.length > 0 && calls.every(isUsualCall);
    return typeof said === 'string' ? calls == null || isCalling : said == null && isCalling;
  }
  if (role === 'tool') return isTextOrAbsent(said) && isTextOrAbsent(wire['tool_call_id']);
  return (role === 'system' || role === 'user' || role === 'developer') && typeof said === 'string';
}

/** Calls are kept as they are, so a call with additional or missing fields goes to the schema. */
function isUsualCall(call: unknown): boolean {
  if (!isObject(call) || !isObject(call['function'])) return false;
  const { name: called, arguments: given } = call['function'];
  if (Object.keys(call).length !== 3 || Object.keys(call['function']).length !== 2) return false;
  return typeof call['id'] === 'string' && call['type'] === 'function' && typeof called === 'string' && typeof given === 'string';
}

function chatBody(turns: readonly Turn[], head: AnswerHead, logprobs: boolean): object {
  return {
    ...headOf(head, 'chat.completion'),
    choices: turns.map((turn, index) => {
      const { content, reasoning, tool_calls: calls = [] } = turn.response;
      return {
        index,
        message: {
          role: 'assistant',
          content,
          refusal: null,
          ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
          ...(calls.length > 0 ? { tool_calls: calls } : {}),
        },
        logprobs: logprobs ? { content: logprobsOf(turn.sampledIds, turn.logprobs, head), refusal: null } : null,
        finish_reason: finishReason(turn),
      };
    }),
    usage: usageOf(turns),
  };
}

const headOf = ({ id, startedAt, model }: AnswerHead, object: string): object => ({
  id: `chatcmpl-${id}`,
  object,
  created: Math.floor(startedAt / 1000),
  model,
});

function finishReason({ stopReason, response }: Turn): 'length' | 'tool_calls' | 'stop' {
  if (stopReason === 'length') return 'length';
  return (response.tool_calls ?? []).length > 0 ? 'tool_calls' : 'stop';
}

/** The prompt counts once for all completions. */
function usageOf(turns: readonly Turn[]): object {
  const prompt = turns[0] === undefined ? 0 : tokensOf(turns[0]).promptTokens;
  const completion = turns.reduce((sum, turn) => sum + tokensOf(turn).sampledTokens, 0);
  return { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion };
}

/**
 * OpenAI's chunks: role; deltas of reasoning, content and tool calls; finish reason; usage if requested; `[DONE]`. A failure after the
 * first chunk is an event with an `error`, which ends the stream. Content is null until there is some, as in the turn.
 */
function chatEvents(head: AnswerHead, { count, logprobs }: ModelRequest, includeUsage: boolean): EventEncoder {
  const common = headOf(head, 'chat.completion.chunk');
  const usage = includeUsage ? { usage: null } : {};
  /** Tokens whose text is not written yet, by choice. */
  const pending: object[][] = Array.from({ length: count }, () => []);

  const chunk = (index: number, delta: object, finish: string | null = null): string => {
    const told = logprobs && pending[index]!.length > 0 ? { content: pending[index]!.splice(0), refusal: null } : null;
    return serverSentEvent({ ...common, choices: [{ index, delta, logprobs: told, finish_reason: finish }], ...usage });
  };

  const encode = ({ choice, piece }: ChoicePiece): string => {
    if (piece.kind === 'tokens') {
      pending[choice]!.push(...logprobsOf(piece.ids, piece.logprobs, head));
      return '';
    }
    if (piece.kind === 'reasoning') return chunk(choice, { reasoning_content: piece.text });
    if (piece.kind === 'text') return chunk(choice, { content: piece.text });
    const { index, call } = piece;
    const id = call.id ?? head.toolCallId(choice, index);
    const opening = { index, id, type: 'function', function: { name: call.name, arguments: '' } };
    return (
      chunk(choice, { tool_calls: [opening] }) +
      chunk(choice, { tool_calls: [{ index, function: { arguments: call.arguments } }] })
    );
  };

  return {
    start: () => Array.from({ length: count }, (_, i) => chunk(i, { role: 'assistant', content: null, refusal: null })).join(''),
    pieces: (pieces) => pieces.map(encode).join(''),
    end: (turns) => {
      const last = turns.map((turn, i) => chunk(i, turn.response.content === '' ? { content: '' } : {}, finishReason(turn)));
      const total = includeUsage ? serverSentEvent({ ...common, choices: [], usage: usageOf(turns) }) : '';
      return `${last.join('')}${total}data: [DONE]\n\n`;
    },
    failure: (thrown) => serverSentEvent(openAIError(gatewayFailure(thrown))),
  };
}
