import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { DEADLY, type HostileOrder, POISONOUS, QUICK, SLOW, UNTRACEABLE } from '../../test/fixtures/grader/hostile.ts';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import { eventually } from '../../test/fixtures/grader/processes.ts';
import type { GraderInput } from '../core/contracts.ts';
import { controlGroupPlace } from '../processes/memory-limit.ts';
import { namespacePrefix } from '../processes/start-child.ts';
import { openGraderPool } from './pool.ts';

type HostileName = NonNullable<HostileOrder['hostile']>;

const CALLS = 1_000;
const module = new URL('../../test/fixtures/grader/hostile.ts', import.meta.url).href;
const isContained = namespacePrefix().length > 0 && controlGroupPlace() !== undefined;

function order(id: number, metadata: HostileOrder): GraderInput {
  const input = inputFor(String(id));
  return { ...input, task: { ...input.task, metadata: { ...metadata } } };
}

/** `costly`: how often each of those comes that costs a deadline or a process. */
function hostileNames(calls: number, costly: number, without: readonly HostileName[] = []): readonly HostileName[] {
  const namesOf = (kinds: object): HostileName[] =>
    (Object.keys(kinds) as HostileName[]).filter((name) => !without.includes(name));
  const repeated = (names: readonly HostileName[], times: number): HostileName[] =>
    Array.from({ length: times }, () => names).flat();
  const first = repeated(namesOf({ ...SLOW, ...DEADLY, ...POISONOUS }), costly);
  const quick = namesOf(QUICK);
  return mixed([...first, ...repeated(quick, Math.ceil(calls / quick.length)).slice(0, calls - first.length)]);
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

/** As many honest gradings as hostile ones, in the same processes. */
async function gradeAll(names: readonly HostileName[], { bare }: { readonly bare: boolean }): Promise<void> {
  const mark = `86400.${process.pid}${bare ? 1 : 0}`;
  // A query of its own, so that only these processes are found by it.
  const url = `${module}?${mark}`;
  const options = { module: url, exportName: 'grader', workers: 2, deadlineMs: 500, memoryMb: 192, bare };
  await using hostile = await openGraderPool({ ...options, retries: 0 });
  // Something left behind by a grading that did not fail may still end the process under an honest one.
  await using honest = await openGraderPool({ ...options, deadlineMs: 20_000, retries: 2 });
  const graded = await Promise.all(
    names.map(async (name, index) => {
      const [bad, good] = await Promise.all([
        hostile.grade(order(index, { hostile: name, mark })),
        honest.grade(order(index, {})),
      ]);
      return { name, index, bad, good };
    }),
  );
  expect(graded.filter(({ bad }) => bad.kind !== 'failed').map(({ name, bad }) => [name, bad])).toEqual([]);
  const wrong = graded.filter(({ good, index }) => good.kind !== 'graded' || good.reward.value !== index);
  expect(wrong.map(({ good }) => good)).toEqual([]);
  expect(hostile.counts).toEqual({ gradings: names.length, attempts: names.length });

  // Back to size: both processes answer, each while the other is busy.
  const pair = await Promise.all([honest.grade(order(1, {})), honest.grade(order(2, {}))]);
  expect(pair).toMatchObject([{ reward: { value: 1 } }, { reward: { value: 2 } }]);
  expect(await eventually(() => commandsWith(url).filter((command) => /^\d+ \S*node/.test(command)).length === 2)).toBe(true);
  await hostile[Symbol.asyncDispose]();
  await honest[Symbol.asyncDispose]();
  expect(await eventually(() => commandsWith(url).length === 0)).toBe(true);
  expect(await eventually(() => commandsWith(mark).length === 0)).toBe(true);
}

describe.runIf(process.platform === 'linux')('hostile gradings among honest ones', () => {
  it.runIf(isContained)(
    '1,000 among 1,000: give no number, cost no honest grading its own, and leave nothing running (needs namespaces and control groups)',
    { timeout: 300_000 },
    async () => {
      const names = hostileNames(CALLS, 2);
      expect(names).toHaveLength(CALLS);
      expect(new Set(names).size).toBeGreaterThan(60);
      await gradeAll(names, { bare: false });
    },
  );

  it('do none of it where there are neither namespaces nor control groups, but for what nothing leads to', {
    timeout: 300_000,
  }, async () => {
    await gradeAll(hostileNames(150, 1, [UNTRACEABLE]), { bare: true });
  });
});
