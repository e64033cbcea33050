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
  const asData = /are code, and only data is compared: write assert add\(1, 2\) == 3 as \{ "args": \[1, 2\], "expected": 3 \}/;
  const unusable: readonly [string, Json | undefined, RegExp][] = [
    ['are missing', undefined, /task "task 1" has no answer/],
    ['are an empty list', [], /is empty/],
    ['are a number', 3, /expected a list, found number/],
    ['are missing in the object', { entry: 'f' }, /there are none/],
    ['are empty in the object', { tests: [] }, /the list is empty/],
    ['are statements', ['assert f() == 1'], asData],
    ['are statements as in MBPP', { test_list: ['assert f() == 1'], test_setup_code: '' }, asData],
    ['are a program as in HumanEval', { entry_point: 'f', test: 'def check(candidate):\n    pass' }, asData],
    ['are mixed', [{ args: [], expected: 1 }, 'assert f() == 1'], asData],
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
    [
      'name something that is no function',
      { entry: 'f(); g', tests: [{ args: [], expected: 1 }] },
      /entry: expected the name of a function/,
    ],
  ];
  it.each(unusable)("because they %s, are the task's fault: unscorable, never 0", async (_what, answer, message) => {
    const graded = async (): Promise<unknown> => graderFor().grade(inputFor('def f():\n    return 1', answer), ctx);
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
  it.each([
    ['python', 'imports what is not there', 'def f():\n    import no_such_module'],
    ['python', 'fails to load for it', 'import no_such_module\ndef f():\n    return 1'],
    ['python', 'raises what an import raises', 'def f():\n    raise ModuleNotFoundError("no", name="no")'],
    ['python', 'says that a name is not defined', 'def f():\n    raise NameError("x")'],
    ['python', 'leaves out what tests use', 'def g():\n    return 1'],
    ['javascript', 'requires what is not there', 'const f = () => require("lodash")'],
    ['javascript', 'fails to load for it', 'require("lodash");\nconst f = () => 1'],
  ] as const)('in %s that %s: 0', async (language, _what, said) => {
    expect(
      await graderFor({ language }).grade(inputFor(said, { entry: 'f', tests: [{ args: [], expected: 1 }] }), ctx),
    ).toMatchObject({
      value: 0,
      success: false,
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
    const tests = [
      { args: [1], expected: 1 },
      { args: [2], expected: 5 },
    ];
    const grade = (options: Partial<UnitTestsOptions>): unknown =>
      graderFor({ entry: 'f', ...options }).grade(inputFor('def f(x):\n    return x', tests), ctx);
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
    const wrong = { language: 'ruby', timeoutMs: 0, memoryMb: 1.5, tolerance: -1, strict: true };
    expect(() => unitTests(wrong as unknown as UnitTestsOptions)).toThrow(
      /language is 'ruby', expected 'javascript' or 'python'; timeoutMs is 0.*memoryMb is 1\.5.*tolerance is -1.*it has no option strict/,
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
    const tests = { kind: 'function', tests: [{ args: [], expected: 1 }], entry: 'f' } as const;
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
        graderFor({ language, timeoutMs: 30_000 }).grade(inputFor(said, { entry: 'f', tests: [{ args: [], expected: 1 }] }), {
          ...ctx,
          signal: controller.signal,
        });
      await expect(graded()).rejects.toMatchObject({ code: 'CANCELLED' });
    }
  });
});
