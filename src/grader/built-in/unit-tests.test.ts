/** The code grader: how code is found, its options, and what is the task's fault, or the sandbox's. Right and wrong code is in the tables. */
import { describe, expect, it } from 'vitest';
import { CODE_CASES } from '../../../test/fixtures/graders/code-cases.ts';
import { ctx, graderFor, inputFor } from '../../../test/fixtures/graders/graded-code.ts';
import type { Json } from '../../core/types.ts';
import { startConfined } from '../../processes/sandbox/confined-process.ts';
import { wholeLimits } from '../../processes/sandbox/program.ts';
import { openSandbox, type Sandbox } from '../../processes/sandbox/sandbox.ts';
import { runTests } from '../code/run-tests.ts';
import { codeInText } from './code-in-text.ts';
import { type UnitTestsOptions, unitTests } from './unit-tests.ts';

/** A sandbox that cannot be set up. */
const startBroken = (): ReturnType<typeof startConfined> =>
  startConfined({ confined: { command: 'false', args: [] }, limits: wholeLimits(), memory: undefined });

describe('code in an answer', () => {
  const fenced = (name: string, code: string): string => `\`\`\`${name}\n${code}\n\`\`\`\n`;
  it('is the last block of the language, else the last without a name, else the last of any, else everything', () => {
    const text = fenced('python', 'first') + fenced('python', 'second') + fenced('', 'unnamed') + fenced('sh', 'pip install x');
    expect(codeInText(text, 'python')).toBe('second\n');
    expect(codeInText(text, 'javascript')).toBe('unnamed\n');
    expect(codeInText(fenced('sh', 'a') + fenced('c', 'b'), 'python')).toBe('b\n');
    expect(codeInText('no fence', 'python')).toBe('no fence');
    expect(codeInText('', 'python')).toBe('');
  });
  it('may hold shorter fences, other fences and Windows line ends', () => {
    expect(codeInText('````py\r\na = """\r\n```\r\n"""\r\n````\r\n', 'python')).toBe('a = """\n```\n"""\n');
    expect(codeInText('~~~js\nf(`\n```\n`)\n~~~', 'javascript')).toBe('f(`\n```\n`)\n');
    expect(codeInText('```python title="a.py"\nx\n```', 'python')).toBe('x\n');
  });
});

describe('tests that cannot be used', () => {
  const faults: readonly [string, Json | undefined, RegExp][] = [
    ['are missing', undefined, /task "task 1" has no answer/],
    ['are an empty list', [], /is empty/],
    ['are an empty program', ' ', /is empty/],
    ['are a number', 3, /expected a list or a program, found number/],
    ['are missing in the object', { entry: 'f' }, /there are none/],
    ['are empty in the object', { tests: [] }, /the list is empty/],
    ['are mixed', ['assert f() == 1', 2, ''], /1: .*; 2: /],
    ['lack what they need', [{ args: [1], expected: 1 }, { args: 1 }, { expected: 2 }], /1\.args: .*1\.expected: .*2\.args: /],
    ['have a name too many', [{ input: 'a', output: 'b', outptu: 'c' }], /outptu/],
    ['name no function to call', [{ args: [1], expected: 1 }], /need `entry`/],
    ['name no function to check', 'def check(candidate):\n    pass', /needs `entry`/],
    ['name something that is no function', { entry: 'f(); g', tests: ['assert f()'] }, /the name of a function/],
    ['are not Python', ['assert f( == 1'], /a test is not Python/],
    ['compare with what they do not define', ['assertEqual(f(), 1)'], /a test uses assertEqual and does not define it/],
    ['end in their set-up', { setup: 'raise SystemExit', tests: ['assert f() == 1'] }, /set-up raised SystemExit/],
    [
      'have a set-up that fails',
      { setup: 'import no_such_module', tests: ['assert f() == 1'] },
      /set-up raised ModuleNotFoundError/,
    ],
  ];
  for (const [what, answer, message] of faults) {
    it(`because they ${what} are the task's fault: unscorable, never 0`, async () => {
      const graded = async (): Promise<unknown> => graderFor().grade(inputFor('def f():\n    return 1', answer), ctx);
      await expect(graded()).rejects.toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(message) });
    });
  }

  const inJavaScript: readonly [string, string, string, RegExp][] = [
    ['are not JavaScript', 'const f = 1', 'assert(f(', /not JavaScript/],
    [
      'compare with what only the code defines',
      'const f = 0, assertEquals = () => {}',
      'assertEquals(f, 1)',
      /uses assertEquals/,
    ],
  ];
  for (const [what, said, test, message] of inJavaScript) {
    it(`because they ${what} are the task's fault in JavaScript, too`, async () => {
      const graded = async (): Promise<unknown> => graderFor({ language: 'javascript' }).grade(inputFor(said, [test]), ctx);
      await expect(graded()).rejects.toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(message) });
    });
  }
});

describe('the tables of code', () => {
  it('hold more than a hundred cases, each once, at least a third of them wrong or hostile', () => {
    expect(CODE_CASES.length).toBeGreaterThanOrEqual(100);
    expect(CODE_CASES.filter(({ passes }) => passes < 1).length / CODE_CASES.length).toBeGreaterThan(1 / 3);
    const names = CODE_CASES.map(({ language, name }) => `${language}: ${name}`);
    expect(names.filter((name, index) => names.indexOf(name) !== index)).toEqual([]);
  });
});

describe('the code grader', () => {
  it('gives 1 for all tests and 0 otherwise, and says how many passed', async () => {
    const tests = ['assert f(1) == 1', 'assert f(2) == 5'];
    const grade = (options: Partial<UnitTestsOptions>): unknown =>
      graderFor(options).grade(inputFor('def f(x):\n    return x', tests), ctx);
    expect(await grade({})).toEqual({ value: 0, success: false, metrics: { passed: 1, total: 2 } });
    expect(await grade({ partial: true })).toEqual({ value: 0.5, success: false, metrics: { passed: 1, total: 2 } });
  });

  it('finds tests, code and function where it is told to', async () => {
    const grader = graderFor({
      tests: ({ task }) => [{ args: [task.answer ?? null], expected: 8 }],
      entry: 'f',
      of: () => 'def f(x):\n    return x + 1',
    });
    expect(await grader.grade(inputFor('nothing', 7), ctx)).toMatchObject({ value: 1, success: true });
  });

  it('refuses options that are none, all at once, when it is made', () => {
    const wrong = {
      language: 'ruby',
      sandbox: 'no',
      timeoutMs: 0,
      memoryMb: 1.5,
      tolerance: -1,
      strict: true,
    } as unknown as UnitTestsOptions;
    expect(() => unitTests(wrong)).toThrow(
      /no option strict, .*language: expected.*found "ruby"; sandbox: .*timeoutMs: .*found 0; memoryMb: .*found 1\.5; tolerance: .*found -1/,
    );
  });

  it('is unscorable where the sandbox fails, in either language', async () => {
    const broken: Sandbox = {
      ...openSandbox({ level: 'best' }),
      start: () => startBroken(),
      run: async () => ({ ...(await startBroken().ended), stdout: '', stderr: '', ranMs: 0 }),
    };
    const tests = { kind: 'function', tests: [{ source: '1' }], entry: undefined, setup: '' } as const;
    for (const language of ['python', 'javascript'] as const) {
      const run = runTests(broken, language, { code: '', tests, timeoutMs: 1_000, memoryMb: 64, tolerance: 0 });
      await expect(run).rejects.toMatchObject({ code: 'GRADER_UNSCORABLE', message: expect.stringMatching(/could not be/) });
    }
  });

  it('ends when it is told to', async () => {
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
