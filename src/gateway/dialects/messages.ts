/**
 * Anthropic's Messages API, read into our nouns and written back.
 *
 * Reading is strict where silence would corrupt training; see `parameters.ts`. What the messages themselves hold is read in
 * `messages-blocks.ts`; answers are written in `messages-answer.ts` and `messages-events.ts`. No I/O, no session state: a message
 * `thread` kept by the server is refused in the words that make Anthropic's own client send the whole conversation instead.
 */
import { z } from 'zod';
import { TrainyardError } from '../../core/errors.ts';
import type { Tool } from '../../core/types.ts';
import type { Dialect, Question } from './dialect.ts';
import { type ForcedCall, forcedCall } from './forced-call.ts';
import { formatChecker } from './json-format.ts';
import { wholeMessage } from './messages-answer.ts';
import { content, messagesOf } from './messages-blocks.ts';
import { anthropicError } from './messages-errors.ts';
import { messageEvents } from './messages-events.ts';
import { ignoredIn, invalid, isEmpty, type Parameters, parsed, refusal } from './parameters.ts';
import { requestedSampling, samplingFields, tokenLimit } from './sampling-parameters.ts';

export const messagesParameters: Parameters = {
  honoured: [
    'messages',
    'model',
    'system',
    'tools',
    'tool_choice',
    'temperature',
    'top_p',
    'top_k',
    'max_tokens',
    'stop_sequences',
    'stream',
    'output_format',
    'output_config',
  ],
  ignored: [
    'betas',
    'cache_control',
    'compaction',
    'container',
    'context_management',
    'diagnostics',
    'fallback_credit_token',
    'fallbacks',
    'inference_geo',
    'metadata',
    'service_tier',
    'speed',
    'thinking',
    'user_profile_id',
    'workspace_id',
  ],
  refused: { mcp_servers: isEmpty, thread: refuseThread },
};

const MOST_STOPS = 16;

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
    const question: Question = {
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
      question,
      writer: {
        whole: (turns, head) => wholeMessage(turns[0]!, head, stopTexts),
        events: (head) => messageEvents(head, stopTexts),
      },
    };
  },
  failure: anthropicError,
};

/** `GET /models` as Anthropic's clients read it. */
export function anthropicModels(name: string): object {
  const model = { type: 'model', id: name, display_name: name, created_at: '1970-01-01T00:00:00Z' };
  return { data: [model], has_more: false, first_id: name, last_id: name };
}

/** The details are what Anthropic's client looks for: it repeats the request, and sends all later ones, without a thread. */
function refuseThread(thread: unknown): boolean {
  if (thread == null) return true;
  throw new TrainyardError('REQUEST_INVALID', 'thread: conversations are not kept here; send all messages', {
    param: 'thread',
    details: { error_code: 'thread_unsupported_request', unsupported: ['thread'] },
  });
}

/**
 * What the policy is shown, and by name what it is not: tools that Anthropic's servers run or define, and those whose loading is
 * deferred. With the choice `none` it is shown no tools.
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
    shown.push({ type: 'function', function: { name, ...(description == null ? {} : { description }), parameters } });
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

function formatOf({ output_format, output_config }: Wire): Question['formatErrorOf'] {
  const param = output_format == null ? 'output_config.format' : 'output_format';
  const asked = output_format ?? output_config?.format;
  if (asked == null) return undefined;
  if (asked.type !== 'json_schema') throw refusal(param, asked, 'use the type "json_schema"');
  if (asked.schema === undefined) throw invalid(`${param}.schema`, 'expected a JSON Schema');
  return formatChecker(asked.schema, `${param}.schema`);
}
