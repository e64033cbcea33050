/**
 * A form of our own for tools, tool calls and results, for chat templates that would leave them out: tools are listed in the system message,
 * calls stand in the text as Hermes models write them, and results become a user message. Probes that are rendered show what a template
 * leaves out. Whatever it writes, or refuses, stays its own business.
 */
import type { Message, Tool } from '../core/types.ts';
import { compileJinja } from './jinja.ts';

export interface OwnForm {
  /** The role of the first message, which lists the tools; undefined if the template shows them. */
  readonly tools: 'system' | 'user' | undefined;
  /** Whether calls and results are in our form. */
  readonly calls: boolean;
}

/** A message as templates get it. */
export interface ShownMessage {
  readonly role: string;
  readonly content: string;
  readonly tool_calls?: readonly { readonly function: { readonly name: string; readonly arguments: unknown } }[];
}

const USER: Message = { role: 'user', content: 'x' };
const [SYSTEM, TOOL, CALL, RESULT] = ['probesystem', 'probetool', 'probecall', 'proberesult'] as const;
const probeTools: readonly Tool[] = [
  { type: 'function', function: { name: TOOL, description: 'x', parameters: { type: 'object' } } },
];
const called: Message = {
  role: 'assistant',
  content: '',
  tool_calls: [{ id: 'call00000', type: 'function', function: { name: CALL, arguments: '{}' } }],
};
const result: Message = { role: 'tool', content: RESULT, tool_call_id: 'call00000', name: CALL };

/** `textOf`: what the template writes for this; undefined if it refuses. */
export function ownFormFor(textOf: (messages: readonly Message[], tools: readonly Tool[]) => string | undefined): OwnForm {
  const system: Message = { role: 'system', content: SYSTEM };
  const leavesOut = (word: string, ...conversations: readonly (readonly Message[])[]): boolean => {
    const texts = conversations.map((messages) => textOf(messages, probeTools)).filter((text) => text !== undefined);
    return texts.length > 0 && !texts.some((text) => text.includes(word));
  };
  const calls = leavesOut(CALL, [USER, called], [USER, called, result]) || leavesOut(RESULT, [USER, called, result]);
  if (!leavesOut(TOOL, [USER], [system, USER])) return { tools: undefined, calls };
  return { tools: textOf([system, USER], [])?.includes(SYSTEM) ? 'system' : 'user', calls };
}

/** Every string in what it is given may be protected: each is inserted as it is. */
export function inOwnForm<T>(form: OwnForm, messages: readonly ShownMessage[], tools: readonly T[]) {
  const written = form.calls ? withCallsAsText(messages) : messages;
  if (form.tools === undefined || tools.length === 0) return { messages: written, tools };
  const [first, ...others] = written;
  const isListed = first?.role === form.tools;
  const content = listing({ tools, [form.tools]: isListed ? first.content : '' });
  return { messages: [{ role: form.tools, content }, ...(isListed ? others : written)], tools: [] };
}

const listing = compileJinja(
  String.raw`{% if system %}{{ system }}

{% endif %}These tools can be called:
<tools>{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}

</tools>
To call one, write its name and its arguments as JSON:
<tool_call>
{"name": "the name", "arguments": {}}
</tool_call>{% if user %}{{ '\n\n' + user }}{% endif %}`,
);

function withCallsAsText(messages: readonly ShownMessage[]): readonly ShownMessage[] {
  return messages.flatMap(({ tool_calls: calls, ...message }, i) => {
    if (message.role === 'tool') {
      if (messages[i - 1]?.role === 'tool') return [];
      const end = messages.findIndex(({ role }, j) => j > i && role !== 'tool');
      const results = messages.slice(i, end === -1 ? messages.length : end);
      return [{ role: 'user', content: results.map(({ content }) => tagged('tool_response', content)).join('\n') }];
    }
    if (!calls?.length) return [message];
    const texts = calls.map(({ function: { name, arguments: given } }) => {
      return tagged('tool_call', `{"name": ${JSON.stringify(name)}, "arguments": ${String(given) || '{}'}}`);
    });
    return [{ ...message, content: [...(message.content === '' ? [] : [message.content]), ...texts].join('\n') }];
  });
}

const tagged = (tag: string, text: string): string => `<${tag}>\n${text}\n</${tag}>`;
