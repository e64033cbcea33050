/**
 * OpenAI Responses, read into a `ModelRequest`. Reading is strict where silence would corrupt training; see `Parameters`. Clients may refer
 * to earlier responses and items of their rollout by id, with or without `store`, but cannot fetch or delete them. Adjacent reasoning, text
 * and calls form one assistant message: they were one completion. Items that we issued read back as exactly the recorded message: they know
 * their response, so consecutive responses stay separate, and a call that a client moved behind another call's result returns to its own
 * message.
 */
import { z } from 'zod';
import type { Message, Tool, ToolCall, Turn } from '../../core/types.ts';
import { openAIError } from '../wire-protocol.ts';
import {
  type AnswerHead,
  assistantMessage,
  commonFields,
  type Dialect,
  ignoredBeside,
  ignoredIn,
  invalid,
  is,
  isEmpty,
  type ModelRequest,
  never,
  openAIFormat,
  openAIToolChoice,
  type Parameters,
  parsed,
  refusal,
  requestedSampling,
  SHOWN,
  tokenLimit,
  toolOf,
} from './dialect.ts';
import {
  type ClientName,
  conversationOf,
  type Item,
  itemsOf,
  type KeptResponse,
  memoryOf,
  type ResponsesMemory,
  responseId,
  responseOf,
  responsesEvents,
  statusOf,
} from './responses-writer.ts';

export const responsesParameters: Parameters = {
  honoured: [
    'input',
    'instructions',
    'previous_response_id',
    'model',
    'tools',
    'tool_choice',
    'temperature',
    'top_p',
    'top_k',
    'max_output_tokens',
    'stream',
    'include',
    'text',
  ],
  ignored: [
    'client_metadata',
    'metadata',
    'parallel_tool_calls',
    'prompt_cache_key',
    'prompt_cache_retention',
    'reasoning',
    'safety_identifier',
    'seed',
    'service_tier',
    'store',
    'stream_options',
    'user',
  ],
  refused: {
    background: is(false),
    context_management: isEmpty,
    conversation: never,
    frequency_penalty: is(0),
    logit_bias: isEmpty,
    max_completion_tokens: never,
    max_tokens: never,
    max_tool_calls: never,
    min_p: is(0),
    n: is(1),
    presence_penalty: is(0),
    prompt: never,
    repetition_penalty: is(1),
    stop: isEmpty,
    top_logprobs: is(0),
    truncation: is('disabled'),
  },
};

const LOGPROBS = 'message.output_text.logprobs';
/** Always included. */
const REASONING = 'reasoning.encrypted_content';

const optionalText = z.string().nullish();
const anyTool = z.looseObject({ type: z.string(), name: optionalText });
const namedChoice = z.looseObject({ type: z.literal('function'), name: z.string(), namespace: optionalText });
const functionTool = z.object({
  type: z.literal('function'),
  name: z.string().min(1),
  description: optionalText,
  parameters: z.json().nullish(),
});
const namespace = z.object({ name: z.string().min(1), tools: z.array(anyTool) });
const body = z.object({
  input: z.union([z.string(), z.array(z.unknown())], 'expected a text or a list of items').nullish(),
  instructions: optionalText,
  previous_response_id: optionalText,
  ...commonFields,
  tools: z.array(anyTool).nullish(),
  tool_choice: z.unknown().optional(),
  max_output_tokens: tokenLimit,
  include: z.array(z.string()).nullish(),
  text: z.looseObject({ format: z.unknown().optional() }).nullish(),
  parallel_tool_calls: z.unknown().optional(),
  metadata: z.unknown().optional(),
});
type Wire = z.infer<typeof body>;

export const responses: Dialect = {
  name: 'responses',
  read(raw, session) {
    const memory = memoryOf(session);
    const wire = parsed(body, raw);
    const { tools, leftOut, clientName, demanded } = toolsOf(wire);
    const ignored = [...ignoredIn(raw as object, responsesParameters), ...leftOut, ...ignoredWithin(wire)];
    const previous = previousOf(wire, memory);
    const fresh = inputOf(wire, memory);
    const instructions: Message[] = wire.instructions == null ? [] : [{ role: 'system', content: wire.instructions }];
    const request: ModelRequest = {
      messages: [...instructions, ...(previous ? conversationOf(previous) : []), ...fresh],
      tools,
      forced: openAIToolChoice(demanded, tools, 'responses'),
      requested: requestedSampling(wire, wire.max_output_tokens),
      count: 1,
      stopTexts: [],
      stream: wire.stream ?? false,
      logprobs: wire.include?.includes(LOGPROBS) ?? false,
      ignored,
      formatErrorOf: openAIFormat(wire.text?.format, 'text.format', 'schema'),
    };
    const echo = echoOf(wire);
    const keep = (head: AnswerHead, turn: Turn, items: readonly Item[]): void =>
      memory.keep({ id: responseId(head), previous, messages: [...fresh, turn.response], items });
    return {
      request,
      writer: {
        whole: ([turn], head) => {
          const output = itemsOf(turn!, { ...head, clientName }, request.logprobs);
          keep(head, turn!, output);
          return responseOf(head, echo, { status: statusOf(turn!), output, turn: turn! });
        },
        events: (head) => {
          const isReplay = memory.response(responseId(head)) !== undefined;
          return responsesEvents({ ...head, clientName }, echo, { isReplay, onEnd: (turn, items) => keep(head, turn, items) });
        },
      },
    };
  },
  failure: openAIError,
};

function previousOf({ previous_response_id: id }: Wire, memory: ResponsesMemory): KeptResponse | undefined {
  if (id == null) return undefined;
  const found = memory.response(id);
  if (found) return found;
  throw invalid('previous_response_id', `no response ${JSON.stringify(id)} was answered in this rollout`, 'send the whole input');
}

function inputOf({ input, previous_response_id: previous }: Wire, memory: ResponsesMemory): readonly Message[] {
  if (typeof input === 'string') return [{ role: 'user', content: input }];
  const messages = messagesOf(input ?? [], memory);
  if (previous == null && messages.length === 0) throw invalid('input', 'says nothing', 'give a text or at least one message');
  return messages;
}

/**
 * The tools to show to the policy, those of a namespace as functions whose names tell it; with the choice `none`, there are none. `leftOut`
 * names the others, which only OpenAI can run or whose input is no JSON. `demanded` is the choice with the policy's name for the tool; the
 * client's name for it is enough without a namespace if only one tool has it. Throws REQUEST_INVALID if the policy could not tell two apart.
 */
function toolsOf({ tools: given, tool_choice: choice }: Wire) {
  const tools: Tool[] = [];
  const leftOut: string[] = [];
  const named = new Map<string, ClientName>();
  const read = (tool: z.infer<typeof anyTool>, at: string, place: number, space?: string): void => {
    if (tool.type === 'namespace' && space === undefined) {
      const inside = parsed(namespace, tool, at);
      for (const [i, one] of inside.tools.entries()) read(one, `${at}.tools.${i}`, place, inside.name);
    } else if (tool.type === 'function') {
      const own = parsed(functionTool, tool, at);
      const name = policyName(own.name, space);
      if (named.has(name) && named.get(name)!.namespace !== space) throw invalid(`${at}.name`, `two tools are called ${name}`);
      named.set(name, { name: own.name, namespace: space });
      tools.push(toolOf({ ...own, name }));
    } else {
      const name = tool.name ? `:${policyName(tool.name, space)}` : '';
      leftOut.push(`tools[${place}]:${tool.type}${name}`.slice(0, SHOWN));
    }
  };
  for (const [place, tool] of (given ?? []).entries()) read(tool, `tools.${place}`, place);
  const clientName = (name: string): ClientName => named.get(name) ?? { name, namespace: undefined };
  const chosen = namedChoice.safeParse(choice).data;
  const wanted = policyName(chosen?.name ?? '', chosen?.namespace);
  const alike = named.has(wanted) ? [] : [...named].filter(([, own]) => own.name === wanted);
  const demanded = chosen ? { ...chosen, name: alike.length === 1 ? alike[0]![0] : wanted } : choice;
  return { tools: choice === 'none' ? [] : tools, leftOut, clientName, demanded };
}

/** What the policy calls a tool of a namespace, in its prompt as in its calls. */
const policyName = (name: string, space: string | null | undefined): string => (space ? `${space}__${name}` : name);

function ignoredWithin({ include, text }: Wire): readonly string[] {
  const unknown = (include ?? []).filter((name) => name !== LOGPROBS && name !== REASONING).map((name) => `include:${name}`);
  return [...unknown, ...ignoredBeside('text', text)].map((name) => name.slice(0, SHOWN));
}

function echoOf(wire: Wire): object {
  return {
    instructions: wire.instructions ?? null,
    previous_response_id: wire.previous_response_id ?? null,
    tools: wire.tools ?? [],
    tool_choice: wire.tool_choice ?? 'auto',
    parallel_tool_calls: wire.parallel_tool_calls !== false,
    temperature: wire.temperature ?? null,
    top_p: wire.top_p ?? null,
    max_output_tokens: wire.max_output_tokens ?? null,
    text: { ...wire.text, format: wire.text?.format ?? { type: 'text' } },
    metadata: wire.metadata ?? {},
  };
}

const TEXT_PARTS = ['input_text', 'output_text', 'text', 'reasoning_text', 'summary_text', 'refusal'];

const part = z.looseObject({ type: z.string(), text: z.string().optional(), refusal: z.string().optional() });
const content = z.union([z.string(), z.array(part)], 'expected a text or a list of parts');
const texts = z.array(part).nullish();
const KINDS = {
  message: z.object({ role: z.enum(['user', 'assistant', 'system', 'developer']), content, id: optionalText }),
  function_call: z.object({
    call_id: z.string(),
    name: z.string().min(1),
    namespace: optionalText,
    arguments: z.string(),
    id: optionalText,
  }),
  function_call_output: z.object({ call_id: z.string(), output: content }),
  reasoning: z.object({ content: texts, summary: texts, encrypted_content: optionalText, id: optionalText }),
  item_reference: z.object({ id: z.string() }),
};
type Kind = keyof typeof KINDS;

/** Throws REQUEST_INVALID naming the item by its index in `input`. */
function messagesOf(input: readonly unknown[], memory: ResponsesMemory): readonly Message[] {
  const entries: Entry[] = [];
  for (const [place, item] of input.entries()) read(item, `input.${place}`, entries, memory);
  return messagesIn(entries);
}

function read(raw: unknown, at: string, entries: Entry[], memory: ResponsesMemory): void {
  const kind = kindOf(raw, at);
  if (kind === 'item_reference') {
    const wanted = parsed(KINDS.item_reference, raw, at);
    const kept = memory.item(wanted.id);
    if (kept === undefined) throw invalid(`${at}.id`, `no item ${JSON.stringify(wanted.id)} was answered in this rollout`);
    read(kept.item, at, entries, memory);
  } else if (kind === 'function_call_output') {
    const { call_id, output } = parsed(KINDS.function_call_output, raw, at);
    entries.push({ role: 'tool', content: textOf(output, `${at}.output`, '\n'), tool_call_id: call_id });
  } else if (kind === 'function_call') {
    const call = parsed(KINDS.function_call, raw, at);
    const made = { name: policyName(call.name, call.namespace), arguments: call.arguments };
    spokenFor(entries, memory, call.id, call.call_id).calls.push({ id: call.call_id, type: 'function', function: made });
  } else if (kind === 'reasoning') {
    readReasoning(parsed(KINDS.reasoning, raw, at), at, entries, memory);
  } else {
    const { role, content: given, id: name } = parsed(KINDS.message, raw, at);
    const text = textOf(given, `${at}.content`, role === 'assistant' ? '' : '\n');
    if (role === 'assistant') {
      const spoken = spokenFor(entries, memory, name);
      spoken.content = (spoken.content ?? '') + text;
    } else entries.push({ role: role === 'user' ? 'user' : 'system', content: text });
  }
}

/** Some clients return our reasoning by id only. Other providers' encrypted reasoning is unreadable and ignored. */
function readReasoning(item: z.infer<typeof KINDS.reasoning>, at: string, entries: Entry[], memory: ResponsesMemory): void {
  const written = (given: z.infer<typeof texts>, field: string): string => textOf(given ?? [], `${at}.${field}`, '');
  const told = written(item.content, 'content') || written(item.summary, 'summary');
  const kept = memory.item(item.id ?? '') ?? memory.item(item.encrypted_content ?? '');
  const ours = kept?.item['type'] === 'reasoning' ? (kept.item as z.infer<typeof KINDS.reasoning>) : undefined;
  const text = told || written(ours?.content, 'content');
  if (text !== '') spokenFor(entries, memory, item.id, item.encrypted_content).reasoning += text;
}

function kindOf(raw: unknown, at: string): Kind {
  if (typeof raw !== 'object' || raw === null) throw invalid(at, 'expected an item, an object with a type');
  const { type, role, id: name } = raw as Item;
  const kind = type ?? (role === undefined && name !== undefined ? 'item_reference' : 'message');
  if (typeof kind === 'string' && Object.hasOwn(KINDS, kind)) return kind as Kind;
  throw refusal(`${at}.type`, kind, `use one of ${Object.keys(KINDS).join(', ')}`);
}

function textOf(given: z.infer<typeof content>, at: string, separator: string): string {
  if (typeof given === 'string') return given;
  return given
    .map(({ type, text, refusal: refused }, place) => {
      if (!TEXT_PARTS.includes(type)) throw refusal(`${at}.${place}.type`, type, 'the policy reads text only');
      const said = text ?? refused;
      if (said === undefined) throw invalid(`${at}.${place}.text`, 'expected a string');
      return said;
    })
    .join(separator);
}

/** The assistant message that an item belongs to: the message of its response if we issued it, otherwise the adjacent one. */
function spokenFor(entries: Entry[], memory: ResponsesMemory, ...names: readonly (string | null | undefined)[]): Spoken {
  const answer = names.map((name) => memory.item(name ?? '')?.responseId).find((found) => found !== undefined);
  return spokenIn(entries, answer);
}

export interface Spoken {
  readonly role: 'assistant';
  answer: string | undefined;
  content: string | null;
  reasoning: string;
  readonly calls: ToolCall[];
}
export type Entry = Spoken | Message;

/** Returns the message that an item of this response belongs to; creates it if necessary. */
export function spokenIn(entries: Entry[], answer: string | undefined): Spoken {
  const last = entries.at(-1);
  if (last && isSpoken(last) && (answer === undefined || last.answer === undefined || last.answer === answer)) {
    last.answer ??= answer;
    return last;
  }
  const before = entries.findLast((entry) => entry.role !== 'tool');
  if (answer !== undefined && before && isSpoken(before) && before.answer === answer) return before;
  const made: Spoken = { role: 'assistant', answer, content: null, reasoning: '', calls: [] };
  entries.push(made);
  return made;
}

export function messagesIn(entries: readonly Entry[]): readonly Message[] {
  return entries.map((entry) => (isSpoken(entry) ? assistantMessage(entry.content, entry.calls, entry.reasoning) : entry));
}

const isSpoken = (entry: Entry): entry is Spoken => 'calls' in entry;
