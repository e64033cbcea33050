/** The code grader: extraction of code, options, and faults of the task or the sandbox. Right and wrong code is in the case tables. */
import { describe, expect, it } from 'vitest';
import { CODE_CASES } from '../../../test/fixtures/graders/code-cases.ts';
import { ctx, graderFor, inputFor } from '../../../test/fixtures/graders/graded-code.ts';
import { needsSandbox } from '../../../test/fixtures/sandbox.ts';
import type { Json } from '../../core/types.ts';
import { openSandbox, type Sandbox, type SandboxProgram } from '../../processes/sandbox.ts';
import { type CodeLanguage, runTests } from './run-tests.ts';
import { codeInText, type UnitTestsOptions, unitTests } from './unit-tests.ts';

const codeOf = (said: string, language: CodeLanguage): string => codeInText(said, language).code;

describe('code in an answer', () => {
  const fenced = (name: string, code: string): string => `\`\`\`${name}\n${code}\n\`\`\`\n`;
  it('is the last block of the language, else the last without a name, else the last of any, else everything', () => {
    const text = fenced('python', 'first') + fenced('python', 'second') + fenced('', 'unnamed') + fenced('sh', 'pip install x');
    expect(codeOf(text, 'python')).toBe('second\n');
    expect(codeOf(text, 'javascript')).toBe('unnamed\n');
    expect(codeOf(fenced('sh', 'a') + fenced('c', 'b'), 'python')).toBe('b\n');
    expect(codeOf('no fence', 'python')).toBe('no fence');
    expect(codeOf('', 'python')).toBe('');
  });
  it('may hold shorter fences, other fences and Windows line ends', () => {
    expect(codeOf('````py\r\na = """\r\n```\r\n"""\r\n````\r\n', 'python')).toBe('a = """\n```\n"""\n');
    expect(codeOf('~~~js\nf(`\n```\n`)\n~~~', 'javascript')).toBe('f(`\n```\n`)\n');
    expect(codeOf('```python title="a.py"\nx\n```', 'python')).toBe('x\n');
  });
});

describe('tests that cannot be used', needsSandbox, () => {
  const says = (source: string): Json => ({
    entry: 'f',
    test: `def check(candidate):\n    ${source}\n    assert candidate() == 1`,
  });
  const python: readonly [string, Json | undefined, RegExp][] = [
    ['are missing', undefined, /task "task 1" has no answer/],
    ['are an empty list', [], /is empty/],
    ['are an empty program', ' ', /is empty/],
    ['are a number', 3, /expected a list or a program, found number/],
    ['are missing in the object', { entry: 'f' }, /there are none/],
    ['are empty in the object', { tests: [] }, /the list is empty/],
    ['are mixed', ['assert f() == 1', 2, ''], /test 2: .*expected string, received number; test 3: expected a text that is not/],
    [
      'lack arguments',
      [
        { args: [1], expected: 1 },
        { args: 1, expected: 1 },
      ],
      /test 2: args: .*expected array, received number/,
    ],
    ['lack what is expected', [{ args: [] }, { expected: 2 }], /test 1: expected: .*; test 2: args: .*expected array/],
    ['have a name too many', [{ input: 'a', output: 'b', outptu: 'c' }], /test 1: Unrecognized key: "outptu"/],
    ['name no function to call', [{ args: [1], expected: 1 }], /need `entry`/],
    ['name no function to check', 'def check(candidate):\n    pass', /needs `entry`/],
    ['name something that is no function', { entry: 'f(); g', tests: ['assert f()'] }, /entry: expected the name of a function/],
    ['are not Python', ['assert f( == 1'], /a test is not Python/],
    ['cannot be compiled', ['def t():\n    from math import *\nassert f() == 1'], /a test is not Python/],
    [
      'import what is not installed',
      ['import no_such_module; assert f() == 1'],
      /imports no_such_module, which is not installed/,
    ],
    ['import nothing but that', ['assert f() == 1', 'import no_such_module'], /imports no_such_module/],
    ['import what a module does not have', ['from math import no_such_name\nassert f() == 1'], /imports math/],
    ['import relatively', ['from . import f'], /a test imports something/],
    ['import it where they check', says('import no_such_module'), /imports no_such_module/],
    ['compare with what they do not define', ['assertEqual(f(), 1)'], /a test uses assertEqual and does not define it/],
    ['end in their set-up', { setup: 'raise SystemExit', tests: ['assert f() == 1'] }, /set-up raised SystemExit/],
    ['have a set-up that fails', { setup: 'import no_such_module', tests: ['f()'] }, /set-up raised ModuleNotFoundError/],
  ];
  const javascript: readonly [string, string, RegExp, string?][] = [
    ['are not JavaScript', 'assert(f(', /not JavaScript/],
    ['require what they do not have', 'const _ = require("lodash"); assert(f === 1)', /a test requires lodash/],
    ['import it', "const { x } = await import('lodash'); assert(f === 1)", /a test requires lodash/],
    [
      'compare with what only the code defines',
      'assertEquals(f, 1)',
      /uses assertEquals/,
      'const f = 0, assertEquals = () => {}',
    ],
  ];
  it.each([
    ...python.map(([what, answer, why]) => ['python', what, 'def f():\n    return 1', answer, why] as const),
    ...javascript.map(([what, test, why, said = 'const f = 1']) => ['javascript', what, said, [test], why] as const),
  ])("in %s, because they %s, are the task's fault: unscorable, never 0", async (language, _what, said, answer, message) => {
    const graded = async (): Promise<unknown> => graderFor({ language }).grade(inputFor(said, answer), ctx);
    await expect(graded()).rejects.toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(message) });
  });
});

describe('the tables of code', () => {
  it('hold more than a hundred cases, each once, at least a third of them wrong or hostile', () => {
    expect(CODE_CASES.length).toBeGreaterThanOrEqual(100);
    expect(CODE_CASES.filter(({ passes }) => passes < 1).length / CODE_CASES.length).toBeGreaterThan(1 / 3);
    const names = CODE_CASES.map(({ language, name }) => `${language}: ${name}`);
    expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([]);
  });
});

describe('code cannot make its tests unscorable', needsSandbox, () => {
  const python = 'import no_such_module';
  it.each([
    ['python', 'imports what is not there', `def f():\n    ${python}`, ['assert f() == 1']],
    ['python', 'fails to load for it', `${python}\ndef f():\n    return 1`, ['assert f() == 1']],
    ['python', 'raises what an import raises', 'def f():\n    raise ModuleNotFoundError("no", name="no")', ['assert f() == 1']],
    ['python', 'says that a name is not defined', 'def f():\n    raise NameError("x")', ['assert f() == 1']],
    ['python', 'leaves out what tests use', 'def f():\n    return 1', ['assert g() == 1']],
    ['python', 'leads to an import', 'def f():\n    return 2', [`if f() != 1:\n    ${python}\nassert f() == 1`]],
    ['javascript', 'requires what is not there', 'const f = () => require("lodash")', ['assert(f() === 1)']],
    ['javascript', 'throws like require', 'const f = () => { throw new Error("tests have no module x") }', ['assert(f() === 1)']],
    ['javascript', 'leads to a require', 'const f = () => 2', ['if (f() !== 1) require("lodash"); assert(f() === 1)']],
    ['javascript', 'lacks like tests', 'const f = () => { throw new ReferenceError("expect is not defined") }', ['f()']],
  ] as const)('in %s that %s: 0', async (language, _what, said, tests) => {
    expect(await graderFor({ language }).grade(inputFor(said, [...tests]), ctx)).toMatchObject({ value: 0, success: false });
  });

  it('and what tests are prepared for is left to them', async () => {
    const guarded = `try:\n    ${python}\nexcept ImportError:\n    pass\nassert f() == 1`;
    const own = `import sys, types\nsys.modules["own"] = types.ModuleType("own")\nimport own\nassert f() == 1`;
    expect(
      await graderFor().grade(inputFor('def f():\n    return 1', [guarded, own, 'import math; assert f() == math.cos(0)']), ctx),
    ).toMatchObject({ value: 1 });
    const tests = [
      'try { require("x") } catch {} assert(f() === 1)',
      '// require("x")\nassert(f() === 1)',
      'require("node:assert")(f() === 1)',
    ];
    expect(await graderFor({ language: 'javascript' }).grade(inputFor('const f = () => 1', tests), ctx)).toMatchObject({
      value: 1,
    });
  });
});

describe('why code failed is in the metrics', needsSandbox, () => {
  const well = { timedOut: 0, loaded: 1, defined: 1 };
  const cases: readonly [string, string, string, Readonly<Record<string, number>>][] = [
    ['right', 'def f():\n    return 1', 'const f = () => 1', { ...well, passed: 1 }],
    ['wrong', 'def f():\n    return 2', 'const f = () => 2', { ...well, passed: 0 }],
    ['prose', 'I cannot do that.', 'I cannot do that.', { ...well, loaded: 0, defined: 0, passed: 0 }],
    ['no function', 'g = 1', 'const g = 1', { ...well, defined: 0, passed: 0 }],
    ['endless', 'def f():\n    while True: pass', 'const f = () => { for (;;); }', { ...well, timedOut: 1, passed: 0 }],
  ];
  for (const language of ['python', 'javascript'] as const) {
    it.each(cases)(`in ${language}: %s`, async (_what, python, javascript, metrics) => {
      const said = language === 'python' ? python : javascript;
      const answer = { entry: 'f', tests: [{ args: [], expected: 1 }] };
      const grade = (text: string): unknown =>
        graderFor({ language, timeoutMs: metrics['timedOut'] ? 1_000 : 10_000 }).grade(inputFor(text, answer), ctx);
      expect(await grade(said)).toMatchObject({ metrics: { ...metrics, fenced: 0, total: 1 } });
      if (_what === 'right') expect(await grade(`\`\`\`\n${said}\n\`\`\``)).toMatchObject({ metrics: { fenced: 1 } });
    });
    it(`in ${language}: a program has no more to say than whether it was too slow`, async () => {
      const loop = language === 'python' ? 'while True: pass' : 'for (;;);';
      const result = await graderFor({ language, timeoutMs: 300 }).grade(inputFor(loop, [{ input: '', output: '' }]), ctx);
      expect(result).toMatchObject({ value: 0, metrics: { passed: 0, total: 1, fenced: 0, timedOut: 1 } });
    });
  }
});

const WELL = { fenced: 0, timedOut: 0, loaded: 1, defined: 1 };

describe('the code grader', () => {
  it('gives 1 for all tests and 0 otherwise, and says how many passed', needsSandbox, async () => {
    const tests = ['assert f(1) == 1', 'assert f(2) == 5'];
    const grade = (options: Partial<UnitTestsOptions>): unknown =>
      graderFor(options).grade(inputFor('def f(x):\n    return x', tests), ctx);
    expect(await grade({})).toEqual({ value: 0, success: false, metrics: { passed: 1, total: 2, ...WELL } });
    expect(await grade({ partial: true })).toEqual({ value: 0.5, success: false, metrics: { passed: 1, total: 2, ...WELL } });
  });

  it('finds tests, code and function where it is told to', needsSandbox, async () => {
    const grader = graderFor({
      tests: ({ task }) => [{ args: [task.answer ?? null], expected: 8 }],
      entry: 'f',
      of: () => 'def f(x):\n    return x + 1',
    });
    expect(await grader.grade(inputFor('nothing', 7), ctx)).toMatchObject({ value: 1, success: true });
  });

  it('refuses options that are none, all at once, when it is made', () => {
    const wrong = { language: 'ruby', sandbox: 'no', timeoutMs: 0, memoryMb: 1.5, tolerance: -1, strict: true };
    expect(() => unitTests(wrong as unknown as UnitTestsOptions)).toThrow(
      /language is 'ruby', expected 'javascript' or 'python'; sandbox is .*timeoutMs is 0.*memoryMb is 1\.5.*tolerance is -1.*it has no option strict/,
    );
  });

  it('is unscorable where the sandbox fails, in either language', needsSandbox, async () => {
    const sandbox = openSandbox();
    const spoilt = <P extends SandboxProgram>(program: P): P => ({ ...program, readable: [{ source: '/not/there' }] });
    const broken: Sandbox = {
      ...sandbox,
      start: (program) => sandbox.start(spoilt(program)),
      run: (program) => sandbox.run(spoilt(program)),
    };
    const tests = { kind: 'function', tests: [{ source: '1' }], entry: undefined, setup: '' } as const;
    for (const language of ['python', 'javascript'] as const) {
      const run = runTests(broken, language, { code: '', tests, timeoutMs: 1_000, memoryMb: 64, tolerance: 0 });
      await expect(run).rejects.toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(/could not be/) });
    }
  });

  it('ends when it is told to', needsSandbox, async () => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), 300);
    for (const language of ['python', 'javascript'] as const) {
      const said = language === 'python' ? 'while True: pass' : 'for (;;);';
      const graded = async (): Promise<unknown> =>
        graderFor({ language, timeoutMs: 30_000 }).grade(inputFor(said, ['f()']), { ...ctx, signal: controller.signal });
      await expect(graded()).rejects.toMatchObject({ code: 'CANCELLED' });
    }
  });
});
