/** What the tracer counts: functions with a block, and the folders between which calls go. */
import { describe, expect, it } from 'vitest';
import { blockBodied, roomOf, walkOf } from './tracer.ts';

const named = (text: string): readonly string[] => blockBodied('some/file.ts', text).map(({ name }) => name);

describe('functions that the tracer counts', () => {
  it('are those with a block as their body, named by what declares them', () => {
    expect(named('export async function first(): Promise<void> {}')).toEqual(['first']);
    expect(named('const second = (a: number): number => { return a; }; const third = (a: number) => a;')).toEqual(['second']);
    expect(
      named('class One { constructor() {} get two() { return 2; } #three(): void {} four = () => {}; five = () => 5; }'),
    ).toEqual(['One.constructor', 'One.two', 'One.#three', 'One.four']);
    expect(named('const object = { six() {}, seven: function () {}, eight: 8 };')).toEqual(['six', 'seven']);
    expect(named('setImmediate(() => { setImmediate(() => {}); });')).toEqual(['=>', '=>']);
  });

  it('begin behind their brace, whatever stands before it', () => {
    const text = "const quote = 'ü🙂'; function after({ a = () => ({}) } = {}): void { quote; }";
    const [{ start } = { start: 0 }] = blockBodied('some/file.ts', text);
    expect(text.slice(start)).toBe(' quote; }');
  });

  it('are not declarations without a body', () => {
    expect(named('declare function none(): void; abstract class A { abstract none(): void; }')).toEqual([]);
    expect(named('function over(a: string): void; function over(a: unknown): void {}')).toEqual(['over']);
  });
});

describe('a walk', () => {
  it('counts calls, functions, files, folders and how often a call is of another folder than the one before', () => {
    const calls = ['core/a.ts', 'core/b.ts', 'store/c.ts', 'core/a.ts', 'index.ts'].map((path) => ({ path, name: 'f' }));
    expect(walkOf(calls)).toEqual({
      calls: 5,
      functions: 4,
      files: 4,
      folders: 3,
      changes: 3,
      street: [
        ['core', 2],
        ['store', 1],
        ['core', 1],
        ['*', 1],
      ],
      repeated: [],
    });
    expect(walkOf([])).toMatchObject({ calls: 0, changes: 0 });
  });

  it('says what is called more than five times, most often first', () => {
    const times = (count: number, name: string) => Array.from({ length: count }, () => ({ path: 'core/a.ts', name }));
    expect(walkOf([...times(5, 'five'), ...times(6, 'six'), ...times(7, 'seven')]).repeated).toEqual([
      ['core/a.ts seven', 7],
      ['core/a.ts six', 6],
    ]);
  });

  it('takes a folder of src/ as one, but for shapes, engines and places, whose folders count by themselves', () => {
    const paths = ['core/a.ts', 'nn/kernels/a.ts', 'index.ts', 'shapes/osmosis/a.ts', 'shapes/osmosis/deep/a.ts', 'places/a.ts'];
    expect(paths.map(roomOf)).toEqual(['core', 'nn', '*', 'shapes/osmosis', 'shapes/osmosis', 'places']);
  });
});
