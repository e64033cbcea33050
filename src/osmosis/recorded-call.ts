/**
 * What was said in a model call, from the texts that went over the wire: the request, and the reply as one body or as events, in each of the
 * dialects. Only for graders and reports: the controller has its own record, with tokens.
 *
 * A reply is read by writing it behind its own request, as the agent will in the next call, and reading that as the gateway reads it.
 */
import { defined } from '../core/json.ts';
import type { Message, StopReason } from '../core/types.ts';
import { ResponsesMemory } from '../gateway/dialects/responses-memory.ts';
import { DIALECTS } from '../gateway/gateway.ts';

export interface RecordedCall {
  readonly messages: readonly Message[];
  readonly response: Message;
  readonly stopReason: StopReason;
}

type Fields = Readonly<Record<string, unknown>>;

interface DialectReader {
  /** The fields of a request that hold its conversation, with these entries behind it. */
  conversation(request: Fields, entries: readonly unknown[]): Fields;
  /** A reply as its client sends it back, and why it ended. */
  reply(body: Fields): { readonly entries: readonly unknown[]; readonly reason: unknown };
  /** The body that events amount to. */
  assembled(events: readonly Fields[]): Fields;
}

const ROUTE = /\/(chat\/completions|responses|messages)$/;
/** How each dialect's events end. What a model says stands in JSON: it begins no line, and its quotes are escaped. */
const LAST_EVENT = /(?<=\n)data: ?\[DONE\]|"type": ?"(?:response\.(?:completed|incomplete)|message_stop)"/;
const CUT_SHORT: readonly unknown[] = ['length', 'max_tokens', 'incomplete'];

/** The dialect's route that a path belongs to, if it is a model call. */
export function routeOf(path: string): string | undefined {
  return ROUTE.exec(path)?.[1];
}

/** Whether a stream of events has said everything: some clients read no further. */
export function isWhole(text: string): boolean {
  return LAST_EVENT.test(text.slice(-4096)) || LAST_EVENT.test(text);
}

/** Undefined where one of the texts is not what the route is for. */
export function recordedCall(route: string, request: string, reply: string, isStream: boolean): RecordedCall | undefined {
  try {
    const reader = READERS[route]!;
    const asked = JSON.parse(request) as Fields;
    const { entries, reason } = reader.reply(isStream ? reader.assembled(eventsOf(reply)) : (JSON.parse(reply) as Fields));
    const before = messagesIn(route, reader.conversation(asked, []));
    const whole = messagesIn(route, reader.conversation(asked, entries));
    const response = whole.findLast(({ role }) => role === 'assistant');
    if (response === undefined || whole.length <= before.length) return undefined;
    return { messages: before, response, stopReason: CUT_SHORT.includes(reason) ? 'length' : 'stop' };
  } catch {
    return undefined;
  }
}

/** Only the conversation: parameters that the gateway would refuse are the policy's to judge. */
function messagesIn(route: string, conversation: Fields): readonly Message[] {
  const body = defined({ model: 'policy', ...conversation });
  return DIALECTS[route]!.read(body, { responses: new ResponsesMemory() }).question.messages;
}

const READERS: Readonly<Record<string, DialectReader>> = {
  'chat/completions': {
    conversation: ({ messages }, entries) => ({ messages: [...list(messages), ...entries] }),
    reply: ({ choices }) => {
      const [choice] = list(choices) as readonly Fields[];
      return { entries: [choice?.['message']], reason: choice?.['finish_reason'] };
    },
    assembled: (events) => ({ choices: [chatChoice(events)] }),
  },
  messages: {
    conversation: ({ messages, system }, entries) => ({ messages: [...list(messages), ...entries], system, max_tokens: 1 }),
    // Nobody may leave the assistant the last word here.
    reply: ({ content, stop_reason: reason }) => ({
      entries: [
        { role: 'assistant', content },
        { role: 'user', content: '' },
      ],
      reason,
    }),
    assembled: anthropicMessage,
  },
  responses: {
    conversation: ({ input, instructions }, entries) => {
      const before = typeof input === 'string' ? [{ role: 'user', content: input }] : list(input);
      return { input: [...before, ...entries], instructions };
    },
    reply: ({ output, status: reason }) => ({ entries: list(output), reason }),
    assembled: (events) => (events.at(-1)?.['response'] ?? {}) as Fields,
  },
};

const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

function eventsOf(text: string): readonly Fields[] {
  const data = text.split('\n').filter((line) => line.startsWith('data:') && !/^data: ?\[DONE\]/.test(line));
  return data.map((line) => JSON.parse(line.slice(5)) as Fields);
}

interface ToolCallPart {
  readonly index: number;
  readonly id?: string;
  readonly function?: { readonly name?: string; readonly arguments?: string };
}

/** The first choice, put together from its chunks. */
function chatChoice(events: readonly Fields[]): Fields {
  let content: string | null = null;
  let reasoning = '';
  let finish: unknown;
  const calls: { id: string; type: 'function'; function: { name: string; arguments: string } }[] = [];
  for (const choice of events.flatMap((event) => list(event['choices']) as readonly Fields[])) {
    if ((choice['index'] ?? 0) !== 0) continue;
    finish = choice['finish_reason'] ?? finish;
    const delta = (choice['delta'] ?? {}) as Fields;
    if (typeof delta['content'] === 'string') content = (content ?? '') + delta['content'];
    const thought = delta['reasoning'] ?? delta['reasoning_content'];
    if (typeof thought === 'string') reasoning += thought;
    for (const part of list(delta['tool_calls']) as readonly ToolCallPart[]) {
      calls[part.index] ??= { id: '', type: 'function', function: { name: '', arguments: '' } };
      const call = calls[part.index]!;
      call.id ||= part.id ?? '';
      call.function.name += part.function?.name ?? '';
      call.function.arguments += part.function?.arguments ?? '';
    }
  }
  const thoughts = reasoning === '' ? {} : { reasoning };
  const message = { role: 'assistant', content, ...thoughts, ...(calls.length === 0 ? {} : { tool_calls: calls }) };
  return { message, finish_reason: finish };
}

/** A message of the Anthropic API, put together from its events. */
function anthropicMessage(events: readonly Fields[]): Fields {
  const content: Record<string, unknown>[] = [];
  let reason: unknown;
  for (const event of events) {
    if (event['type'] === 'content_block_start') content[event['index'] as number] = { ...(event['content_block'] as Fields) };
    const delta = (event['delta'] ?? {}) as Fields;
    if (event['type'] === 'message_delta') reason = delta['stop_reason'];
    const block = event['type'] === 'content_block_delta' ? content[event['index'] as number] : undefined;
    if (block === undefined) continue;
    for (const [name, part] of Object.entries(delta)) {
      if (name !== 'type') block[name] = `${(block[name] as string | undefined) ?? ''}${part as string}`;
    }
  }
  const blocks = content.map(({ partial_json: json, ...block }) =>
    json === undefined ? block : { ...block, input: JSON.parse(String(json)) as unknown },
  );
  return { content: blocks, stop_reason: reason };
}
