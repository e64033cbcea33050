import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { DEADLY, type HostileOrder, QUICK, SLOW } from '../../test/fixtures/grader/hostile.ts';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import { eventually } from '../../test/fixtures/grader/processes.ts';
import type { GraderInput } from '../core/contracts.ts';
import { namespacePrefix } from '../processes/namespace.ts';
import { openGraderPool } from './pool.ts';

const CALLS = 1_000;
/** Each costs a deadline. */
const SLOW_REPEATS = 2;
/** Each costs a process. */
const DEADLY_REPEATS = 4;
const module = new URL('../../test/fixtures/grader/hostile.ts', import.meta.url).href;

function order(id: number, metadata: HostileOrder): GraderInput {
  const input = inputFor(String(id));
  return { ...input, task: { ...input.task, metadata: { ...metadata } } };
}

/** Where there are no namespaces, what leaves its group and drops its environment is beyond reach, as the documentation says. */
function hostileNames(): readonly NonNullable<HostileOrder['hostile']>[] {
  const repeated = <Name>(names: readonly Name[], times: number): Name[] => Array.from({ length: times }, () => names).flat();
  const quick = (Object.keys(QUICK) as (keyof typeof QUICK)[]).filter(
    (name) => namespacePrefix().length > 0 || name !== 'leaves detached processes',
  );
  const costly = [
    ...repeated(Object.keys(SLOW) as (keyof typeof SLOW)[], SLOW_REPEATS),
    ...repeated(Object.keys(DEADLY) as (keyof typeof DEADLY)[], DEADLY_REPEATS),
  ];
  const rest = repeated(quick, Math.ceil(CALLS / quick.length)).slice(0, CALLS - costly.length);
  return mixed([...costly, ...rest]);
}

/** The same order every time, and nothing beside its like. */
function mixed<T>(values: readonly T[]): readonly T[] {
  const step = 617;
  return values.map((_, index) => values[(index * step) % values.length]!);
}

function commandsWith(argument: string): readonly string[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        const command = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0');
        return command.includes(argument) ? [`${pid} ${command.join(' ')}`] : [];
      } catch {
        return [];
      }
    });
}

describe('1,000 hostile gradings among 1,000 honest ones', () => {
  it('give no number, cost no honest grading its own, and leave nothing running', { timeout: 300_000 }, async () => {
    const mark = `86400.${process.pid}`;
    const options = { module, exportName: 'grader', workers: 2, deadlineMs: 1_000, memoryMb: 192 };
    await using hostile = await openGraderPool({ ...options, retries: 0 });
    // What a hostile grading left behind may end the process under an honest one, several times in a row with bad luck.
    await using honest = await openGraderPool({ ...options, deadlineMs: 20_000, retries: 5 });
    const names = hostileNames();
    expect(names).toHaveLength(CALLS);
    expect(new Set(names).size).toBeGreaterThan(40);
    const both = names.map(
      async (name, index) =>
        [
          await Promise.all([hostile.grade(order(index, { hostile: name, mark })), honest.grade(order(index, {}))]),
          name,
          index,
        ] as const,
    );
    const graded = await Promise.all(both);
    const gave = graded.filter(([[grade]]) => grade.kind !== 'failed').map(([[grade], name]) => [name, grade]);
    expect(gave).toEqual([]);
    const wrong = graded.filter(([[, grade], , index]) => grade.kind !== 'graded' || grade.reward.value !== index);
    expect(wrong.map(([[, grade]]) => grade)).toEqual([]);

    // Back to size: both processes answer, each while the other is busy.
    const pair = await Promise.all([honest.grade(order(1, {})), honest.grade(order(2, {}))]);
    expect(pair).toMatchObject([{ reward: { value: 1 } }, { reward: { value: 2 } }]);
    expect(hostile.counts).toEqual({ gradings: CALLS, attempts: CALLS });
    await hostile[Symbol.asyncDispose]();
    await honest[Symbol.asyncDispose]();
    expect(await eventually(() => commandsWith(module).length === 0)).toBe(true);
    expect(await eventually(() => commandsWith(mark).length === 0)).toBe(true);
  });
});
