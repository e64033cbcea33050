/**
 * A form of our own for tools, tool calls and results, for chat templates that would leave them out: tools are listed in the system message,
 * calls stand in the text as Hermes models write them, and results become a user message. Probes that are rendered show what a template
 * leaves out. Whatever it writes, or refuses, stays its own business.
 */
import type { Message, Tool } from '../core/types.ts';

export interface OwnForm {
  /** The role of the first message, which lists the tools; undefined if the template shows them. */
  readonly tools: 'system' | 'user' | undefined;
  /** Whether calls and results are in our form. */
  readonly calls: boolean;
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

/**
 * The template with our form in it, for every program that renders Jinja as Hugging Face does: what stands before the template rewrites
 * `messages` and `tools`, and writes nothing. Strings are inserted as they are, so they may be protected.
 */
export function withOwnForm({ tools, calls }: OwnForm, template: string): string {
  return [...(calls ? [CALLS_AS_TEXT] : []), ...(tools ? [listedIn(tools)] : []), template].join('\n');
}

// Each part ends in a tag without a dash: the line break after it is taken away, and the white space that the template begins with is not.
const CALLS_AS_TEXT = String.raw`{#- Tool calls and their results as text, as the model was trained. -#}
{%- set own = namespace(messages=[], content='') -%}
{%- for message in messages -%}
  {%- if message.role == 'tool' -%}
    {%- set before = own.content + '\n' if own.content else '' -%}
    {%- set own.content = before + '<tool_response>\n' + message.content + '\n</tool_response>' -%}
    {%- if loop.last or messages[loop.index].role != 'tool' -%}
      {%- set own.messages = own.messages + [{'role': 'user', 'content': own.content}] -%}
      {%- set own.content = '' -%}
    {%- endif -%}
  {%- elif message.tool_calls -%}
    {%- set own.content = message.content or '' -%}
    {%- for call in message.tool_calls -%}
      {%- set before = own.content + '\n' if own.content else '' -%}
      {%- set given = call.function.arguments -%}
      {%- set json = given or '{}' if given is string else given | tojson -%}
      {%- set named = '{"name": ' + call.function.name | tojson + ', "arguments": ' -%}
      {%- set own.content = before + '<tool_call>\n' + named + json + '}\n</tool_call>' -%}
    {%- endfor -%}
    {%- set said = {'role': message.role, 'content': own.content, 'reasoning_content': message.reasoning_content} -%}
    {%- set own.messages = own.messages + [said] -%}
    {%- set own.content = '' -%}
  {%- else -%}
    {%- set own.messages = own.messages + [message] -%}
  {%- endif -%}
{%- endfor -%}
{%- set messages = own.messages %}`;

const listedIn = (role: string) => `{#- Tools in the first message, as the model was trained. -#}
{%- if tools -%}
  {%- set own_first = messages and messages[0].role == '${role}' -%}
  {%- set own_${role} = messages[0].content if own_first else '' -%}
  {%- set own_listing %}${LISTING}{% endset -%}
  {%- set messages = [{'role': '${role}', 'content': own_listing}] + (messages[1:] if own_first else messages) -%}
{%- endif -%}
{%- set tools = none %}`;

const LISTING = String.raw`{% if own_system %}{{ own_system }}

{% endif %}These tools can be called:
<tools>{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}

</tools>
To call one, write its name and its arguments as JSON:
<tool_call>
{"name": "the name", "arguments": {}}
</tool_call>{% if own_user %}{{ '\n\n' + own_user }}{% endif %}`;
