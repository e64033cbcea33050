import { describe, expect, it } from 'vitest';
import { parseAssistant } from './response-parser.ts';
import type { CallFormat } from './tool-calls.ts';
import { hermes, llama, mistral, qwen3Coder } from './tool-calls.ts';

const read = (format: CallFormat, text: string) => parseAssistant(text, { format, thinks: 'unmarked', beforeCalls: '' });

describe('calls in the words of Qwen3-Coder', () => {
  const call = (body: string) => `<tool_call>\n<function=${body}</function>\n</tool_call>`;
  const parameter = (key: string, value: string) => `<parameter=${key}>\n${value}\n</parameter>\n`;

  it('are read with their parameters in order, several of them, with the text around', () => {
    const text = `Let me see.\n${call(`f>\n${parameter('b', 'two\nlines')}${parameter('a', '')}`)}\n${call('g>\n')} Done.`;
    expect(read(qwen3Coder, text)).toEqual({
      content: 'Let me see.\n\n Done.',
      toolCalls: [
        { name: 'f', arguments: '{"b":"two\\nlines","a":""}' },
        { name: 'g', arguments: '{}' },
      ],
    });
  });

  it('have values as they were written where they are JSON, and strings otherwise', () => {
    const json = ['1.0', '12345678901234567890', '[1, "a"]', '{"x": 1}', 'true', 'null'];
    const values = [...json, '"quoted"', 'True', '007', ' 5 ', '\n5\n'];
    const given = values.map((value, i) => parameter(`k${i}`, value)).join('');
    expect(read(qwen3Coder, call(`f>\n${given}`)).toolCalls[0]!.arguments).toBe(
      '{"k0":1.0,"k1":12345678901234567890,"k2":[1, "a"],"k3":{"x": 1},"k4":true,"k5":null,' +
        '"k6":"\\"quoted\\"","k7":"True","k8":"007","k9":5,"k10":5}',
    );
  });

  it('may have tags in their values', () => {
    const value = '</tool_call><function=g></function>';
    expect(JSON.parse(read(qwen3Coder, call(`f>${parameter('code', value)}`)).toolCalls[0]!.arguments)).toEqual({ code: value });
  });

  it.each([
    ['no name', call('>')],
    ['no function', '<tool_call>\n</tool_call>'],
    ['a function that is not closed', '<tool_call><function=f></tool_call>'],
    ['a parameter that is not closed', '<tool_call><function=f><parameter=a>1</function></tool_call>'],
    ['words between parameters', call(`f>${parameter('a', '1')} and ${parameter('b', '2')}`)],
    ['no closing tag', '<tool_call><function=f></function>'],
    ['a name over two lines', call('f\ng>')],
    ['JSON', '<tool_call>{"name":"f","arguments":{}}</tool_call>'],
  ])('stay text with %s', (_, text) => {
    expect(read(qwen3Coder, text)).toEqual({ content: text, toolCalls: [] });
  });
});

describe('calls in the words of Llama 3.1', () => {
  const call = (name: string, parameters: string) => `{"name": "${name}", "parameters": ${parameters}}`;

  it('are the JSON that the response is, with the source of the parameters', () => {
    expect(read(llama, call('f', '{ "x" :1.0}'))).toEqual({
      content: null,
      toolCalls: [{ name: 'f', arguments: '{ "x" :1.0}' }],
    });
    expect(read(llama, ` \n${call('f', '{}')}\n`).toolCalls).toEqual([{ name: 'f', arguments: '{}' }]);
  });

  it.each(['; ', ';', '\n', ' ;\n ', ''])('may be several, with %j between them', (between) => {
    const text = [call('f', '{"a":";{"}'), call('g', '{}'), call('h', '[]')].join(between);
    const { content, toolCalls } = read(llama, text);
    expect(content).toBeNull();
    expect(toolCalls.map(({ name }) => name)).toEqual(['f', 'g', 'h']);
  });

  it('may stand behind the tag for code', () => {
    expect(read(llama, `<|python_tag|>${call('f', '{}')}; ${call('g', '{}')}`).toolCalls).toHaveLength(2);
    const code = '<|python_tag|>search.call(query="x")';
    expect(read(llama, code)).toEqual({ content: code, toolCalls: [] });
  });

  it('end where other text begins, which is the content', () => {
    expect(read(llama, `${call('f', '{}')}; then ${call('g', '{}')}`)).toEqual({
      content: `; then ${call('g', '{}')}`,
      toolCalls: [{ name: 'f', arguments: '{}' }],
    });
  });

  it.each([
    ['words before it', `Sure: ${call('f', '{}')}`],
    ['arguments under another name', '{"name": "f", "arguments": {}}'],
    ['no name', '{"parameters": {}}'],
    ['no end', '{"name": "f", "parameters": {}'],
    ['bad JSON', "{'name': 'f', 'parameters': {}}"],
    ['a list around it', `[${call('f', '{}')}]`],
  ])('stay text with %s', (_, text) => {
    expect(read(llama, text)).toEqual({ content: text, toolCalls: [] });
  });
});

describe('calls in the words of Mistral', () => {
  it('are the list behind its mark, with the source of the arguments; the ids in it name nothing', () => {
    const text =
      'So: [TOOL_CALLS][{"name": "f", "arguments": { "x" :1.0}, "id": "123456789"}, {"name":"g","arguments":{}}] Done.';
    expect(read(mistral, text)).toEqual({
      content: 'So:  Done.',
      toolCalls: [
        { name: 'f', arguments: '{ "x" :1.0}' },
        { name: 'g', arguments: '{}' },
      ],
    });
  });

  it('do not end at a bracket inside a string', () => {
    const text = '[TOOL_CALLS] [{"name":"f","arguments":{"a":"]}\\"],"}}]';
    expect(read(mistral, text)).toEqual({ content: null, toolCalls: [{ name: 'f', arguments: '{"a":"]}\\"],"}' }] });
  });

  it.each([
    ['an empty list', '[TOOL_CALLS][]'],
    ['one element that is no call', '[TOOL_CALLS][{"name":"f","arguments":{}},{"name":"g"}]'],
    ['an element that is a list', '[TOOL_CALLS][["name"]]'],
    ['no list', '[TOOL_CALLS]{"name":"f","arguments":{}}'],
    ['no end', '[TOOL_CALLS][{"name":"f","arguments":{}}'],
    ['bad JSON', '[TOOL_CALLS][{"name":"f","arguments":{},}]'],
    ['no mark', '[{"name":"f","arguments":{}}]'],
  ])('stay text with %s', (_, text) => {
    expect(read(mistral, text)).toEqual({ content: text, toolCalls: [] });
  });
});

it.each([
  [hermes, '<tool_call>{"name":"f","arguments":{}}</tool_call>'],
  [qwen3Coder, '<tool_call><function=f></function></tool_call>'],
  [mistral, '[TOOL_CALLS][{"name":"f","arguments":{}}]'],
])('a call that was only thought of stays text, also where thoughts have no place of their own', (format, call) => {
  const text = `a <think> ${call} </think> b`;
  expect(read(format, text)).toEqual({ content: text, toolCalls: [] });
  expect(read(format, `<think>${call}`)).toEqual({ content: `<think>${call}`, toolCalls: [] });
  expect(read(format, `${text}${call}`)).toEqual({ content: text, toolCalls: [{ name: 'f', arguments: '{}' }] });
  const thought = parseAssistant(`<think>${call}</think>${call}`, { format, thinks: 'tagged', beforeCalls: '' });
  expect(thought).toEqual({ reasoning: call, content: null, toolCalls: [{ name: 'f', arguments: '{}' }] });
});
