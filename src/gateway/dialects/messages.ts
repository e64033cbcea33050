/**
 * Anthropic's Messages API, read into a `ModelRequest`. Reading is strict where silence would corrupt training; see `Parameters`. A message
 * `thread` kept by the server is refused in the words that make Anthropic's own client send the whole conversation instead.
 *
 * The content of messages is text, tool calls, tool results and thinking; everything else is refused by name, since the policy could not
 * read it. A string and one text block are the same. An assistant's blocks are one message, its texts joined as they were sampled. A user's
 * tool results are messages of their own, in the order given, and so are the texts between them. Markers (`cache_control`, `citations`,
 * `is_error`, `signature`) are not read: where a client puts them changes from turn to turn.
 */
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import type { Message, Tool, ToolCall } from '../../core/types.ts';
import {
  type Dialect,
  type ForcedCall,
  forcedCall,
  formatChecker,
  ignoredIn,
  invalid,
  isEmpty,
  type ModelRequest,
  type Parameters,
  parsed,
  refusal,
  requestedSampling,
  samplingFields,
  tokenLimit,
  toolOf,
} from './dialect.ts';
import { anthropicError, messageBody, messageEvents } from './messages-writer.ts';

export const messagesParameters: Parameters = {
  honoured: [
    ...['messages', 'model', 'system', 'tools', 'tool_choice', 'temperature', 'top_p', 'top_k', 'max_tokens'],
    ...['stop_sequences', 'stream', 'output_format', 'output_config'],
  ],
  ignored: [
    ...['betas', 'cache_control', 'compaction', 'container', 'context_management', 'diagnostics', 'fallback_credit_token'],
    ...['fallbacks', 'inference_geo', 'metadata', 'service_tier', 'speed', 'thinking', 'user_profile_id', 'workspace_id'],
  ],
  refused: { mcp_servers: isEmpty, thread: refuseThread },
};

const MOST_STOPS = 16;

const block = z.looseObject({ type: z.string() });
const content = z.union([z.string(), z.array(block)]);
const tool = z.object({
  type: z.string().nullish(),
  name: z.string().min(1).nullish(),
  description: z.string().nullish(),
  input_schema: z.json().nullish(),
  defer_loading: z.boolean().nullish(),
});
const toolChoice = z.object({ type: z.string(), name: z.string().nullish(), disable_parallel_tool_use: z.boolean().nullish() });
const format = z.object({ type: z.string(), schema: z.json().optional() });
const body = z.object({
  messages: z.array(z.object({ role: z.enum(['user', 'assistant', 'system']), content })).min(1),
  model: z.string().max(256).nullish(),
  system: content.nullish(),
  tools: z.array(tool).nullish(),
  tool_choice: toolChoice.nullish(),
  ...samplingFields,
  max_tokens: tokenLimit,
  stop_sequences: z.array(z.string().min(1)).max(MOST_STOPS).nullish(),
  stream: z.boolean().nullish(),
  output_format: format.nullish(),
  output_config: z.looseObject({ format: format.nullish() }).nullish(),
});
type Wire = z.infer<typeof body>;

export const messages: Dialect = {
  name: 'messages',
  read(raw) {
    // Before anything else: a request that continues a thread need not even have messages.
    refuseThread((raw as { thread?: unknown } | null)?.thread);
    const wire = parsed(body, raw);
    const ignored = ignoredIn(raw as object, messagesParameters);
    const { tools, leftOut } = toolsOf(wire);
    const stopTexts = wire.stop_sequences ?? [];
    const request: ModelRequest = {
      messages: messagesOf(wire),
      tools,
      forced: forcedOf(wire, tools),
      requested: requestedSampling(wire, wire.max_tokens),
      count: 1,
      stopTexts,
      stream: wire.stream ?? false,
      logprobs: false,
      ignored: [...ignored, ...leftOut, ...ignoredWithin(wire)],
      formatErrorOf: formatOf(wire),
    };
    return {
      request,
      writer: {
        whole: (turns, head) => messageBody(turns[0]!, head, stopTexts),
        events: (head) => messageEvents(head, stopTexts),
      },
    };
  },
  failure: anthropicError,
};

/** The details are what Anthropic's client looks for: it repeats the request, and sends all later ones, without a thread. */
function refuseThread(thread: unknown): boolean {
  if (thread == null) return true;
  throw new TrainyardError('REQUEST_INVALID', 'thread: conversations are not kept here; send all messages', {
    param: 'thread',
    details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] },
  });
}

/**
 * The tools that the policy is shown; `leftOut` names the others: those that Anthropic's servers run or define, and those whose loading is
 * deferred. With the choice `none` the policy is shown no tools.
 */
function toolsOf({ tools, tool_choice: choice }: Wire): { readonly tools: readonly Tool[]; readonly leftOut: readonly string[] } {
  const shown: Tool[] = [];
  const leftOut: string[] = [];
  for (const [i, { type, name, description, input_schema: parameters, defer_loading: deferred }] of (tools ?? []).entries()) {
    if ((type != null && type !== 'custom') || deferred) {
      leftOut.push(`tools:${name ?? type ?? i}`);
      continue;
    }
    if (name == null) throw invalid(`tools.${i}.name`, 'expected the name of the tool');
    if (parameters == null) throw invalid(`tools.${i}.input_schema`, 'expected a JSON Schema');
    shown.push(toolOf({ name, description, parameters }));
  }
  return { tools: choice?.type === 'none' ? [] : shown, leftOut };
}

function forcedOf({ tool_choice: choice }: Wire, tools: readonly Tool[]): ForcedCall | undefined {
  if (choice == null || choice.type === 'auto' || choice.type === 'none') return undefined;
  if (choice.type === 'any') return forcedCall(undefined, tools);
  if (choice.type === 'tool') return forcedCall(choice.name ?? null, tools);
  throw refusal('tool_choice', choice, 'use the type "auto", "none", "any" or "tool"');
}

/** Parts of honoured parameters that have no effect. */
function ignoredWithin({ tool_choice, output_config }: Wire): readonly string[] {
  const within = Object.entries(output_config ?? {}).filter(([name, value]) => name !== 'format' && value != null);
  return [
    ...(tool_choice?.disable_parallel_tool_use ? ['tool_choice.disable_parallel_tool_use'] : []),
    ...within.map(([name]) => `output_config.${name}`),
  ];
}

function formatOf({ output_format, output_config }: Wire): ModelRequest['formatErrorOf'] {
  const param = output_format == null ? 'output_config.format' : 'output_format';
  const asked = output_format ?? output_config?.format;
  if (asked == null) return undefined;
  if (asked.type !== 'json_schema') throw refusal(param, asked, 'use the type "json_schema"');
  if (asked.schema === undefined) throw invalid(`${param}.schema`, 'expected a JSON Schema');
  return formatChecker(asked.schema, `${param}.schema`);
}

// ── content ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

type Block = z.infer<typeof block>;
type Content = z.infer<typeof content>;

interface Conversation {
  readonly system?: Content | null | undefined;
  readonly messages: readonly { readonly role: 'user' | 'assistant' | 'system'; readonly content: Content }[];
}

export function messagesOf({ system, messages }: Conversation): readonly Message[] {
  const last = messages.length - 1;
  if (messages[last]?.role === 'assistant') {
    throw invalid(
      `messages.${last}.role`,
      'the conversation ends with the assistant',
      'an answer that was begun is not continued',
    );
  }
  const instructions = system == null ? '' : textOf(system, 'system');
  return [
    ...(instructions === '' ? [] : [{ role: 'system' as const, content: instructions }]),
    ...messages.flatMap(({ role, content: given }, i) => {
      const at = `messages.${i}.content`;
      if (role === 'user') return userMessages(given, at);
      return role === 'assistant' ? [assistantMessage(given, at)] : [{ role, content: textOf(given, at) }];
    }),
  ];
}

function userMessages(given: Content, at: string): readonly Message[] {
  const messages: Message[] = [];
  let texts: string[] = [];
  const endText = (): void => {
    if (texts.length > 0) messages.push({ role: 'user', content: texts.join('\n') });
    texts = [];
  };
  for (const [i, one] of blocksOf(given).entries()) {
    const place = `${at}.${i}`;
    if (one.type === 'text') texts.push(stringIn(one, 'text', place));
    else if (one.type === 'tool_result') {
      endText();
      messages.push(toolMessage(one, place));
    } else throw unreadable(one, place);
  }
  endText();
  return messages.length > 0 ? messages : [{ role: 'user', content: '' }];
}

function toolMessage(result: Block, at: string): Message {
  const given = content.nullish().safeParse(result.content);
  if (!given.success) throw invalid(`${at}.content`, 'expected a string or a list of blocks');
  return { role: 'tool', content: textOf(given.data ?? '', `${at}.content`), tool_call_id: stringIn(result, 'tool_use_id', at) };
}

function assistantMessage(given: Content, at: string): Message {
  let text = '';
  let reasoning = '';
  const calls: ToolCall[] = [];
  for (const [i, one] of blocksOf(given).entries()) {
    const place = `${at}.${i}`;
    if (one.type === 'text') text += stringIn(one, 'text', place);
    else if (one.type === 'thinking') reasoning += stringIn(one, 'thinking', place);
    else if (one.type === 'tool_use') calls.push(toolCall(one, place));
    else throw unreadable(one, place);
  }
  return {
    role: 'assistant',
    content: text === '' && calls.length > 0 ? null : text,
    ...(calls.length > 0 ? { tool_calls: calls } : {}),
    ...(reasoning === '' ? {} : { reasoning }),
  };
}

function toolCall(use: Block, at: string): ToolCall {
  const { input = {} } = use;
  const said = { name: stringIn(use, 'name', at), arguments: JSON.stringify(input) };
  return { id: stringIn(use, 'id', at), type: 'function', function: said };
}

/** Text that nobody sampled; blocks are lines of it. */
function textOf(given: Content, at: string): string {
  if (typeof given === 'string') return given;
  return given
    .map((one, i) => {
      if (one.type !== 'text') throw unreadable(one, `${at}.${i}`);
      return stringIn(one, 'text', `${at}.${i}`);
    })
    .join('\n');
}

const blocksOf = (given: Content): readonly Block[] => (typeof given === 'string' ? [{ type: 'text', text: given }] : given);

function stringIn(one: Block, name: string, at: string): string {
  const value = one[name];
  if (typeof value === 'string') return value;
  throw invalid(`${at}.${name}`, `expected a string in a block of type ${JSON.stringify(one.type)}`);
}

function unreadable({ type }: Block, at: string): Error {
  return refusal(`${at}.type`, type, 'here the policy reads text, and tool calls and their results where they belong');
}
