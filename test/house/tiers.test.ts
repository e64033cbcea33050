/**
 * The quick tier stays quick. `npm test` runs every test file whose name does not end in `.full.test.ts`; `npm run test:full` runs the others and
 * the real packages. What needs a longer timeout, or starts programs, belongs to the full tier, but for the files that are named here.
 */
import { posix } from 'node:path';
import { Visitor } from 'vite';
import { describe, expect, it } from 'vitest';
import { importsOf } from './imports.ts';
import { lineAt, parseSource, readSources, type Source } from './sources.ts';

/** Quick files that start programs, each few and short. */
const MAY_START_PROGRAMS: ReadonlySet<string> = new Set([
  'test/smoke.test.ts',
  'src/tasks/tasks.test.ts',
  'src/grading/parent-death.test.ts',
  'src/places/process/rollout-files.test.ts',
  'src/places/process/rollout-sandbox.test.ts',
  'src/processes/agent-process.test.ts',
  'src/processes/few-descriptors.test.ts',
  'src/processes/sandbox.test.ts',
  'src/processes/event-loop-monitor.test.ts',
  'src/processes/limits.test.ts',
  'src/rollout/discovery.test.ts',
  'src/run/evaluation-files.test.ts',
  'src/store/sqlite.test.ts',
  'test/cli/bad-input.test.ts',
  'test/cli/preflight.test.ts',
  'test/cli/show.test.ts',
  'test/cli/try.full.test.ts',
  'test/tinker/sampling.test.ts',
  'test/types/messages.test.ts',
]);

const isQuick = (path: string): boolean =>
  path.endsWith('.test.ts') && !path.endsWith('.full.test.ts') && !/^test\/(?:packages|house)\//.test(path);

/** A timeout of its own, as the third argument or as an option: the test is expected to be slow. */
function timeoutFaults(source: Source): readonly string[] {
  const faults: string[] = [];
  const add = (start: number): void =>
    void faults.push(
      `${source.path}:${lineAt(source, start)}: a test with a timeout of its own is slow; move it to a .full.test.ts file`,
    );
  new Visitor({
    CallExpression: ({ callee, arguments: given, start }) => {
      if (callee.type === 'Identifier' && (callee.name === 'it' || callee.name === 'test') && given.length === 3) {
        const [, second, third] = given;
        if (third?.type === 'Literal') add(start);
        if (second?.type === 'ObjectExpression' && source.text.slice(second.start, second.end).includes('timeout')) add(start);
      }
    },
  }).visit(source.program);
  return faults;
}

/** Test files that start programs, directly or by a file of test/ that they import. */
function startsPrograms(sources: readonly Source[]): ReadonlySet<string> {
  const byPath = new Map(sources.map((source) => [source.path, source]));
  const known = new Map<string, boolean>();
  const starts = (path: string): boolean => {
    const answer = known.get(path);
    if (answer !== undefined) return answer;
    known.set(path, false);
    const source = byPath.get(path);
    const found =
      source !== undefined &&
      importsOf(source).some(({ specifier, erased }) =>
        specifier.startsWith('.')
          ? !erased && starts(posix.join(posix.dirname(path), specifier))
          : specifier === 'node:child_process',
      );
    known.set(path, found);
    return found;
  };
  return new Set(sources.map(({ path }) => path).filter(starts));
}

describe('the quick tier', () => {
  const sources = [...readSources('src').filter(({ path }) => path.endsWith('.test.ts')), ...readSources('test')];
  const quick = sources.filter(({ path }) => isQuick(path));

  it('has no test that is expected to be slow', () => {
    expect(quick.flatMap(timeoutFaults)).toEqual([]);
  });

  it('starts programs only where it is known to', () => {
    const starting = startsPrograms(sources);
    const found = quick.map(({ path }) => path).filter((path) => starting.has(path));
    expect(found.filter((path) => !MAY_START_PROGRAMS.has(path))).toEqual([]);
  });
});

describe('the tier rules', () => {
  it.each([
    ["it('a', f, 60_000);", 1],
    ["it('a', { timeout: 9 }, f);", 1],
    ["it('a', f);", 0],
  ])('find in %s %i slow tests', (text, count) => {
    expect(timeoutFaults(parseSource('test/a.test.ts', text))).toHaveLength(count);
  });

  it('find a program that is started by an imported file', () => {
    const sources = [
      parseSource('test/a.test.ts', "import { f } from './b.ts';"),
      parseSource('test/b.ts', "import { spawn } from 'node:child_process';"),
      parseSource('test/c.test.ts', "import type { F } from './b.ts';"),
    ];
    expect([...startsPrograms(sources)]).toEqual(['test/a.test.ts', 'test/b.ts']);
  });
});
