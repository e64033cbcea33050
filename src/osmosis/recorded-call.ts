/**
 * What was said in a model call, from the texts that went over the wire: the request, and the reply as one body or as events, in each of the
 * dialects. Only for graders and reports: who trains has its own record, with tokens.
 *
 * A reply is read by writing it behind its own request, as the agent will in the next call, and reading that as the gateway reads it.
 */
import type { Message, StopReason } from '../core/types.ts';
import type { Dialect } from '../gateway/dialects/dialect.ts';
import { DIALECTS } from '../gateway/gateway.ts';

export interface RecordedCall {
  readonly messages: readonly Message[];
  readonly response: Message;
  readonly stopReason: StopReason;
}

type Fields = Readonly<Record<string, unknown>>;

interface Reply {
  /** The request's conversation and what was answered, in the dialect's own form. */
  readonly whole: Fields;
  readonly stopReason: StopReason;
}

const ROUTE = /\/(chat\/completions|responses|messages)$/;
/** How each dialect's events end. What a model says stands in JSON: it begins no line, and its quotes are escaped. */
const LAST_EVENT = /(?<=\n)data: ?\[DONE\]|"type": ?"(?:response\.(?:completed|incomplete)|message_stop)"/;

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
  const dialect = DIALECTS[route];
  try {
    const asked = JSON.parse(request) as Fields;
    const events = isStream ? eventsOf(reply) : [];
    const { whole, stopReason } = READERS[route]!(asked, isStream ? undefined : (JSON.parse(reply) as Fields), events);
    const said = conversationOf(dialect!, whole);
    const before = conversationOf(dialect!, asked);
    const response = said.findLast(({ role }) => role === 'assistant');
    if (response === undefined || said.length <= before.length) return undefined;
    return { messages: before, response, stopReason };
  } catch {
    return undefined;
  }
}

/** Only the conversation: parameters that the gateway would refuse are the policy's to judge. */
function conversationOf(dialect: Dialect, { messages, system, input, instructions }: Fields): readonly Message[] {
  const body = { model: 'policy', max_tokens: 1, messages, system, input, instructions };
  const given = Object.fromEntries(Object.entries(body).filter(([name, value]) => value !== undefined && takes(dialect, name)));
  return dialect.read(given, {}).request.messages;
}

const takes = ({ name }: Dialect, field: string): boolean =>
  name === 'responses' ? field !== 'messages' && field !== 'system' && field !== 'max_tokens' : field !== 'input';

type Reader = (asked: Fields, body: Fields | undefined, events: readonly Fields[]) => Reply;

const READERS: Readonly<Record<string, Reader>> = {
  'chat/completions': (asked, body, events) => {
    const [choice] = body === undefined ? [chatChoice(events)] : (body['choices'] as readonly Fields[]);
    const stopReason = choice?.['finish_reason'] === 'length' ? 'length' : 'stop';
    return { whole: { messages: [...list(asked['messages']), choice?.['message']] }, stopReason };
  },
  messages: (asked, body, events) => {
    const { content, stop_reason: reason } = body ?? messageOfEvents(events);
    // Nobody may leave the assistant the last word here.
    const next = { role: 'user', content: '' };
    const whole = { ...asked, messages: [...list(asked['messages']), { role: 'assistant', content }, next] };
    return { whole, stopReason: reason === 'max_tokens' ? 'length' : 'stop' };
  },
  responses: (asked, body, events) => {
    const { output, status } = body ?? ((events.at(-1)?.['response'] ?? {}) as Fields);
    const { input } = asked;
    const before = typeof input === 'string' ? [{ role: 'user', content: input }] : list(input);
    return { whole: { ...asked, input: [...before, ...list(output)] }, stopReason: status === 'incomplete' ? 'length' : 'stop' };
  },
};

const list = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : []);

function eventsOf(text: string): readonly Fields[] {
  return text
    .split('\n')
    .filter((line) => line.startsWith('data:') && !/^data: ?\[DONE\]/.test(line))
    .map((line) => JSON.parse(line.slice(5)) as Fields);
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
  const message = {
    role: 'assistant',
    content,
    ...(reasoning === '' ? {} : { reasoning }),
    ...(calls.length === 0 ? {} : { tool_calls: calls }),
  };
  return { message, finish_reason: finish };
}

/** An Anthropic message, put together from its events. */
function messageOfEvents(events: readonly Fields[]): Fields {
  const content: Record<string, unknown>[] = [];
  let reason: unknown;
  for (const event of events) {
    if (event['type'] === 'content_block_start') content[event['index'] as number] = { ...(event['content_block'] as Fields) };
    const delta = (event['delta'] ?? {}) as Fields;
    if (event['type'] === 'message_delta') reason = delta['stop_reason'];
    const block = event['type'] === 'content_block_delta' ? content[event['index'] as number] : undefined;
    if (block === undefined) continue;
    for (const [name, part] of Object.entries(delta)) {
      if (name === 'partial_json') block['json'] = `${(block['json'] as string | undefined) ?? ''}${part as string}`;
      else if (name !== 'type') block[name] = `${(block[name] as string | undefined) ?? ''}${part as string}`;
    }
  }
  const blocks = content.map(({ json, ...block }) =>
    json === undefined ? block : { ...block, input: JSON.parse(String(json)) as unknown },
  );
  return { content: blocks, stop_reason: reason };
}
