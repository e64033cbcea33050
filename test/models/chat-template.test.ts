/** The chat template: what the base policy was trained on for the shop, and something sensible for every other agent. */
import { readFileSync } from 'node:fs';
import { Template } from '@huggingface/jinja';
import { describe, expect, it } from 'vitest';
import { renderConversation } from '../../models/conversation-text.ts';
import { CLEAN, drawConversation, NOISY } from '../../models/pretraining-data.ts';
import { seededRandom } from '../../models/random.ts';
import { SYSTEM_PROMPT, TOOLS } from '../../models/shop-domain.ts';

const template = new Template(readFileSync(new URL('../../models/chat-template.jinja', import.meta.url), 'utf8'));
const user = { role: 'user', content: 'hello' };
const userText = '<|im_start|>user\nhello<|im_end|>\n';

function render(messages: readonly object[], tools?: readonly object[], add_generation_prompt = false): string {
  return template.render({ messages, ...(tools === undefined ? {} : { tools }), add_generation_prompt });
}

function tool(definition: object): object {
  return { type: 'function', function: definition };
}

/** The tool lines of the header that these tools give. */
function toolLines(...tools: readonly object[]): readonly string[] {
  return render([user], tools).split('<|im_end|>')[0]?.split('\n').slice(2) ?? [];
}

describe('the examples’ conversations', () => {
  it('are rendered byte for byte as the base policy was trained', () => {
    const messages = [
      { role: 'system', content: SYSTEM_PROMPT },
      { role: 'user', content: 'Total for 5 "Binklex glove"?' },
      { role: 'assistant', content: null, tool_calls: [call('lookup', '{"item":"Binklex glove"}')] },
      { role: 'tool', tool_call_id: '1', content: '{"price":81,"stock":21}' },
      { role: 'assistant', content: 'That is $405.' },
    ];
    expect(render(messages, TOOLS, true)).toBe(
      [
        '<|im_start|>system',
        'You are a shop assistant. Use the tools to answer.',
        'Tools:',
        '{"name":"lookup","description":"price and stock of an item","parameters":{"item":"string"}}',
        '{"name":"calculator","description":"work out a sum","parameters":{"expression":"string"}}<|im_end|>',
        '<|im_start|>user',
        'Total for 5 "Binklex glove"?<|im_end|>',
        '<|im_start|>assistant',
        '<tool_call>{"name":"lookup","arguments":{"item":"Binklex glove"}}</tool_call><|im_end|>',
        '<|im_start|>tool',
        '{"price":81,"stock":21}<|im_end|>',
        '<|im_start|>assistant',
        'That is $405.<|im_end|>',
        '<|im_start|>assistant',
        '',
      ].join('\n'),
    );
  });

  it('are the text that pretraining trains on', () => {
    const random = seededRandom(11);
    for (let i = 0; i < 600; i++) {
      const conversation = drawConversation(random, i % 2 === 0 ? CLEAN : NOISY);
      const pieces = renderConversation(conversation);
      expect(pieces.map((piece) => piece.text).join('')).toBe(render(conversation.messages, conversation.tools));
    }
  });
});

describe('other agents’ conversations', () => {
  it('have no system block when there is neither a system message nor a tool', () => {
    expect(render([user])).toBe(userText);
    expect(render([user], [])).toBe(userText);
  });

  it('have a system block for tools alone', () => {
    expect(render([user], [tool({ name: 'now' })])).toBe(
      `<|im_start|>system\nTools:\n{"name":"now","parameters":{}}<|im_end|>\n${userText}`,
    );
  });

  it('may have no messages yet', () => {
    expect(render([])).toBe('');
  });

  it('keep a later system message in its place', () => {
    expect(render([user, { role: 'system', content: 'be brief' }])).toBe(`${userText}<|im_start|>system\nbe brief<|im_end|>\n`);
  });

  it('show an assistant’s words before its tool calls, and several calls in order', () => {
    const message = { role: 'assistant', content: 'Let me see. ', tool_calls: [call('a', '{"x":1}'), call('b', '{}')] };
    expect(render([message])).toBe(
      '<|im_start|>assistant\nLet me see. <tool_call>{"name":"a","arguments":{"x":1}}</tool_call>' +
        '<tool_call>{"name":"b","arguments":{}}</tool_call><|im_end|>\n',
    );
  });

  it.each([{ content: null }, {}, { content: '' }, { content: null, tool_calls: null }, { content: null, tool_calls: [] }])(
    'render an assistant message %j as an empty turn',
    (rest) => {
      expect(render([{ role: 'assistant', ...rest }])).toBe('<|im_start|>assistant\n<|im_end|>\n');
    },
  );

  it('render missing or parsed arguments as JSON too', () => {
    expect(render([{ role: 'assistant', tool_calls: [call('a', '')] }])).toContain('"arguments":{}}');
    expect(render([{ role: 'assistant', tool_calls: [call('a', { x: 1 })] }])).toContain('"arguments":{"x": 1}}');
  });
});

describe('tools', () => {
  it.each([
    ['no parameters', {}],
    ['empty parameters', { parameters: {} }],
    ['parameters without properties', { parameters: { type: 'object' } }],
    ['no properties', { parameters: { type: 'object', properties: {} } }],
    ['null parameters', { parameters: null }],
  ])('with %s have none', (_, rest) => {
    expect(toolLines(tool({ name: 't', ...rest }))).toEqual(['{"name":"t","parameters":{}}']);
  });

  it.each([
    [{ type: 'number' }, 'number'],
    [{ type: 'object', properties: { inner: { type: 'string' } } }, 'object'],
    [{ type: 'string', enum: ['a', 'b'] }, 'string'],
    [{ enum: ['a', 'b'] }, 'enum'],
    [{ type: ['string', 'null'] }, 'any'],
    [{ anyOf: [{ type: 'string' }, { type: 'null' }] }, 'any'],
    [{ $ref: '#/$defs/thing' }, 'any'],
    [{}, 'any'],
    [true, 'any'],
    [null, 'any'],
  ])('show a parameter of schema %j as %s', (schema, word) => {
    const parameters = { type: 'object', properties: { first: { type: 'string' }, second: schema } };
    expect(toolLines(tool({ name: 't', parameters }))).toEqual([
      `{"name":"t","parameters":{"first":"string","second":"${word}"}}`,
    ]);
  });

  it('may have parameters named like methods of a dictionary', () => {
    const properties = Object.fromEntries(['items', 'keys', 'get', 'type', 'length'].map((name) => [name, { type: 'string' }]));
    const [line = ''] = toolLines(tool({ name: 't', parameters: { properties } }));
    expect(Object.keys((JSON.parse(line) as { readonly parameters: object }).parameters)).toEqual(Object.keys(properties));
  });

  it('stay one line of JSON each, whatever their texts hold', () => {
    const description = 'says "hi"\nin two lines \\ ünï';
    const lines = toolLines(tool({ name: 'a"b', description }), tool({ name: 'plain' }));
    expect(lines.map((line) => JSON.parse(line))).toEqual([
      { name: 'a"b', description, parameters: {} },
      { name: 'plain', parameters: {} },
    ]);
  });
});

describe('a conversation that goes on', () => {
  const long = [
    { role: 'system', content: 'S' },
    user,
    { role: 'assistant', content: 'wait', tool_calls: [call('a', '{}')] },
    { role: 'tool', tool_call_id: '1', content: 'result' },
    { role: 'assistant', content: 'done' },
    { role: 'system', content: 'again' },
    user,
  ];

  it.each([[undefined], [TOOLS]])('renders to an extension of what it was', (tools) => {
    for (const conversation of [long, long.slice(1)]) {
      const renderings = conversation.map((_, index) => render(conversation.slice(0, index + 1), tools));
      for (const [index, text] of renderings.slice(1).entries()) {
        expect(text.startsWith(renderings[index] ?? 'nothing')).toBe(true);
      }
    }
  });

  it('adds the generation prompt at the end and nowhere else', () => {
    expect(render(long, TOOLS, true)).toBe(`${render(long, TOOLS)}<|im_start|>assistant\n`);
  });
});

function call(name: string, given: unknown): object {
  return { id: '1', type: 'function', function: { name, arguments: given } };
}
