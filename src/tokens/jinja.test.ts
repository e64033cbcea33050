import { describe, expect, it, onTestFinished, vi } from 'vitest';
import { compileJinja, pythonNumber } from './jinja.ts';

const rendered = (source: string, variables: Readonly<Record<string, unknown>> = {}) => compileJinja(source)(variables);

/** What Python's Jinja writes, with the filters that chat templates are rendered with; but DEL and private-use characters are never escaped. */
it.each<[string, Readonly<Record<string, unknown>>, string]>([
  [`{{ x.strip('\\n') }}|`, { x: '\n\n a \t\n' }, ' a \t|'],
  [`{{ x.lstrip('\\n') }}|`, { x: '\n  a\n' }, '  a\n|'],
  [`{{ x.rstrip('\\n') }}|`, { x: '\na \n' }, '\na |'],
  [`{{ x.split('b')[0].rstrip('\\n').split('a')[-1].lstrip('\\n') }}|`, { x: 'a\n c \nb' }, ' c |'],
  [`{{ x.strip('xy') }}|`, { x: 'xyaxbyx' }, 'axb|'],
  ['{{ x.strip() }}|', { x: '\u001C\u0085 a\uFEFF ' }, 'a\uFEFF|'],
  ['{{ x | trim }}|', { x: '\u3000\u001F\u2028a\u200B\n' }, 'a\u200B|'],
  ["{{ x | trim('-') }}|", { x: '- a -' }, ' a |'],
  [
    '{{ x | tojson }}',
    { x: { b: [], a: {}, c: [1, 'ß"', null, true, 0.00001, 2.5e-7] } },
    '{"b": [], "a": {}, "c": [1, "ß\\"", null, true, 1e-05, 2.5e-07]}',
  ],
  [
    '{{ x | tojson(indent=2) }}',
    { x: { b: [], a: {}, c: [1, { d: 2 }] } },
    '{\n  "b": [],\n  "a": {},\n  "c": [\n    1,\n    {\n      "d": 2\n    }\n  ]\n}',
  ],
  [
    "{{ x | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}",
    { x: { b: 'é😀\u007F\uE000', a: [1, 2] } },
    '{"a":[1,2],"b":"\\u00e9\\ud83d\\ude00\u007F\uE000"}',
  ],
  ['{{ "yes" if x == y else "no" }}', { x: { a: [1, { b: 'c' }] }, y: { a: [1, { b: 'c' }] } }, 'yes'],
  ['{{ "yes" if x == y else "no" }}', { x: { a: [1] }, y: { a: [2] } }, 'no'],
  ['{{ "yes" if x == y else "no" }}', { x: { a: 1 }, y: { b: 1 } }, 'no'],
  ['{{ "yes" if x != y else "no" }}', { x: [1], y: [1, 1] }, 'yes'],
  ['{{ "yes" if true == 1 and "1" != 1 else "no" }}', {}, 'yes'],
  [
    '{% for m in x %}{% if m == x[-1] %}{{ loop.index }}{% endif %}{% endfor %}',
    { x: [{ a: 'b' }, { a: 'c' }, { a: 'b' }] },
    '13',
  ],
  ["{% set f = {'k': x.strip('-')} %}{{ f.k }}", { x: '-a-' }, 'a'],
])('a template writes what it does in Python %s of %j', (source, variables, expected) => {
  expect(rendered(source, variables)).toBe(expected);
});

it('a template that makes no sense is refused where it is no template, and where it strips what is no text', () => {
  expect(() => compileJinja('{% if %}')).toThrow();
  expect(() => rendered('{{ x.strip() }}', { x: 1 })).toThrow('only text');
});

describe('a template that does not end', () => {
  it.each([
    ['{% for i in range(1000000000) %}{% endfor %}', 'asks for a range of 1000000000 numbers'],
    ['{% for i in range(0, 10, 0) %}{% endfor %}', 'asks for a range of Infinity numbers'],
    [
      '{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}{% endfor %}',
      'has not ended after 5 s',
    ],
    ['{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}', 'has not ended after 5 s'],
  ])('is blamed by name: %s', (source, found) => {
    let now = 0;
    const clock = vi.spyOn(performance, 'now').mockImplementation(() => (now += 100));
    onTestFinished(() => clock.mockRestore());
    const message = expect.stringContaining(`the chat template of the model ${found}`);
    expect(() => rendered(source)).toThrow(expect.objectContaining({ code: 'TOKENIZER_INVALID', message }));
  });

  it('ranges are those of Python', () => {
    const listed = (args: string) => rendered(`{{ range(${args}) | join(',') }}`);
    expect(['4', '1, 4', '5, 0, -2', '0', '3, 1'].map(listed)).toEqual(['0,1,2,3', '1,2,3', '5,3,1', '', '']);
  });
});

describe('numbers', () => {
  it.each([
    ['1', '1'],
    ['-0', '0'],
    ['1.0', '1.0'],
    ['-0.0', '-0.0'],
    ['0.10', '0.1'],
    ['5e3', '5000.0'],
    ['12345678901234567890', '12345678901234567890'],
    ['9999999999999998.0', '9999999999999998.0'],
    ['1e16', '1e+16'],
    ['1E-7', '1e-07'],
    ['0.0001', '0.0001'],
    ['0.00001', '1e-05'],
    ['1.5e300', '1.5e+300'],
  ])('%s is %s in Python', (source, written) => {
    expect(pythonNumber(source)).toBe(written);
  });

  it('are told by their mark, and never by what a text says', () => {
    const render = compileJinja('{{ x | tojson }}');
    expect(render({ x: ['§§1.0', '§1.0', '§§a', '1.0'] }, '§§')).toBe('[§§1.0, "§1.0", "§§a", "1.0"]');
  });
});
