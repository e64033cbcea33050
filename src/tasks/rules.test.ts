/** What rows must be, and how what is wrong with them is told. */
import { describe, expect, it } from 'vitest';
import { refusal } from '../../test/fixtures/refusal.ts';
import type { TaskRow } from './rows.ts';
import { readDataset, readTasks } from './tasks.ts';

const rows = (...given: readonly unknown[]) => readTasks(given as TaskRow[], { name: 'rows' });
const refuses = (given: Promise<unknown>, message: string | RegExp, hint?: string) =>
  expect(given).rejects.toMatchObject(refusal('DATASET_INVALID', message, hint));
const ask = (i: number) => ({ prompt: `question ${i}`, answer: i });

describe('what is wrong', () => {
  it('is told all at once, in the order of the rows', async () => {
    const wrong = rows({ prompt: 1, metadata: { a: 1 } }, { prompt: 'fine', metadata: {} }, { prompt: 'x' });
    await refuses(
      wrong,
      /^rows: row 1: prompt: .*found a number; row 2: metadata: .*found an empty object; row 3: top-level fields differ from the first row \(missing: metadata\)$/,
    );
  });

  it('is told up to the fifth', async () => {
    const empty = Array.from({ length: 6 }, () => ({ prompt: '' }));
    await refuses(rows(...empty.slice(1)), /row 5: prompt[^…]*$/);
    await refuses(rows(...empty), /row 5: prompt.* … \(showing first 5 errors\)$/);
  });

  it('with the columns is told once', async () => {
    const misspelt = Array.from({ length: 9 }, () => ({ prompt: 'a', anwser: 1, difficulty: 2 }));
    await refuses(
      rows(...misspelt),
      /^rows: row 1: unknown column anwser, did you mean answer\?; row 1: unknown column difficulty; put what the agent may read/,
    );
    await refuses(
      rows({ question: 'a', gold: 1 }),
      /unknown column question, did you mean prompt\?; row 1: unknown column gold, did you mean answer\?/,
    );
    // A row that has one already means another thing by it.
    await refuses(
      rows({ prompt: 'a', question: 'b' }),
      'column question; put what the agent may read into metadata, and what only the grader may read into answer',
    );
    await refuses(rows({ answer: 1 }, { answer: 2 }), /^rows row 1: missing required columns/);
  });

  it('with one row’s fields is told with what to write instead, where null would do', async () => {
    await refuses(
      rows({ prompt: 'a', answer: 1 }, { prompt: 'b' }),
      /\(missing: answer\); write null where a row has no answer$/,
    );
    expect(await rows({ prompt: 'a', answer: 1 }, { prompt: 'b', answer: null })).toHaveLength(2);
  });

  it('is that there are too few, where so many are asked for', async () => {
    const three = [ask(1), ask(2), ask(3)];
    expect(await readTasks(three)).toHaveLength(3);
    await refuses(
      readTasks(three, { minTasks: 4, name: 'rows' }),
      'Dataset too small: 3 rows. A minimum of 4 rows is required.',
      '--min-tasks 3',
    );
    await refuses(rows(), 'rows holds no task');
  });

  const cyclic: Record<string, unknown> = {};
  cyclic['self'] = cyclic;
  it.each([
    [Number.NaN, 'finite number'],
    [2 ** 53, 'whole numbers'],
    [-(2 ** 63), 'whole numbers'],
    [10n, 'expected JSON, found bigint'],
    [new Date(0), 'expected JSON, found a Date'],
    [() => 1, 'expected JSON, found function'],
    [cyclic, 'nested deeper'],
    ['half \ud83d', 'surrogate'],
    [new Array(2), '.0: expected JSON, found undefined'],
    [new (class {})(), 'found an object of a class'],
  ])('is an answer or metadata that is no JSON: case %#', async (value, message) => {
    await refuses(rows({ prompt: 'a', answer: value }), message);
    await refuses(rows({ prompt: 'a', metadata: { deep: [value] } }), message);
  });

  it('is a row that is no object, a value that throws when it is read, or an unknown column however it is named', async () => {
    const broken = {
      get deep(): never {
        throw new Error('no database');
      },
    };
    await refuses(rows('text'), 'row 1: expected an object, found a text');
    await refuses(rows({ prompt: 'a', metadata: broken }), 'row 1: metadata: reading it threw: no database');
    const magic = JSON.parse('{"prompt":"a","__proto__":{"answer":1}}') as unknown;
    await refuses(rows(magic), 'unknown column __proto__');
    const [task] = await rows({ prompt: 'a\0b', metadata: JSON.parse('{"__proto__":{"isAdmin":true},"constructor":1}') });
    expect(task?.prompt[0]?.content).toBe('a\0b');
    expect(Object.keys(task?.metadata as object)).toEqual(['__proto__', 'constructor']);
  });
});

describe('metadata', () => {
  it.each([null, {}, [], 'text', 5])('is an object with something in it, not %j', async (metadata) => {
    await refuses(rows({ metadata }), 'metadata: expected an object with at least one key');
  });

  it('makes the prompt optional', async () => {
    expect(await rows({ metadata: { k: 1 } }, { metadata: { k: 2 } })).toMatchObject([{ prompt: [] }, { prompt: [] }]);
    expect(await rows({ prompt: null, metadata: { k: 1 } }, { prompt: 'a', metadata: { k: 2 } })).toMatchObject([
      { prompt: [] },
      { prompt: [{ role: 'user', content: 'a' }] },
    ]);
  });

  it('has no empty object inside, however deep', async () => {
    for (const inner of [{}, { a: {} }, [{}], [[{ b: {} }]]]) {
      await refuses(rows({ metadata: { k: inner } }), 'found an empty object');
    }
  });

  it('has one type under one key: whole and other numbers agree, true and null with nothing and everything', async () => {
    const values = (...given: readonly unknown[]) => rows(...given.map((value) => ({ metadata: { k: { v: value, fixed: 1 } } })));
    expect(await values(1, 2.5, null, -3)).toHaveLength(4);
    await refuses(values(1, true), 'row 2: metadata.k.v: expected a number as on row 1, found true or false');
    await refuses(values('a', null, 1), 'row 3: metadata.k.v: expected a text as on row 1, found a number');
    await refuses(values([1], { a: 1 }), 'expected a list as on row 1, found an object');
  });
});

describe('an answer that an agent could read', () => {
  const codes = async (...given: readonly unknown[]) => (await readDataset(given as TaskRow[])).warnings.map(({ code }) => code);

  it.each(['answer', 'ground_truth', 'label', 'solution'])('in metadata.%s is refused', async (key) => {
    await refuses(rows({ prompt: 'a', answer: 42, metadata: { [key]: 42 } }), `metadata.${key} is the answer`);
    await expect(rows({ prompt: 'a', answer: { x: [1] }, metadata: { [key]: { x: [1] } } })).rejects.toThrow('is the answer');
    expect(await rows({ prompt: 'a', answer: 42, metadata: { [key]: 43 } })).toHaveLength(1);
  });

  it('in the prompt is warned about, where it is long enough to be no accident', async () => {
    const { warnings } = await readDataset([
      { prompt: 'Is it 7?', answer: '7' },
      { prompt: 'Say: the quick brown fox.', answer: 'the quick brown fox' },
      { prompt: 'Again the quick brown fox', answer: 'the quick brown fox' },
    ]);
    expect(warnings).toEqual([{ code: 'LABEL_IN_PROMPT', message: expect.stringContaining('row 2') }]);
    expect(warnings[0]?.message).toContain('1 more');
    expect(warnings[0]?.message).not.toContain('fox');
  });

  it('deep in the metadata, under a name that says so, is refused; in a list of choices it is not', async () => {
    for (const metadata of [{ reward_model: { ground_truth: '7' } }, { extra: { GroundTruth: 7 } }, { 'correct-answer': '7' }]) {
      await refuses(rows({ prompt: 'a', answer: '7', metadata }), 'is the answer');
    }
    const choices = { options: [{ label: 'A' }, { label: 'B' }], target: 'A' };
    expect(await codes({ prompt: 'a', answer: 'A', metadata: choices })).toEqual([]);
  });

  it('in the metadata under another name, or in the id, is warned about where it is no accident', async () => {
    const long = 'the quick brown fox';
    expect(await codes({ prompt: 'a', answer: long, metadata: { notes: [{ text: `it is ${long}!` }] } })).toEqual([
      'LABEL_IN_METADATA',
    ]);
    expect(await codes({ prompt: 'a', answer: { city: 'Paris' }, metadata: { k: { city: 'Paris' } } })).toEqual([
      'LABEL_IN_METADATA',
    ]);
    expect(await codes({ id: `task of ${long}`, prompt: 'a', answer: long })).toEqual(['LABEL_IN_ID']);
    expect(await codes({ id: '7', prompt: '7', answer: '7', metadata: { k: '7' } })).toEqual([]);
  });

  it('is seen in other case, as a key of metadata, and where it is part of an answer', async () => {
    const long = 'The quick brown fox';
    expect(await codes({ prompt: 'say the QUICK brown fox', answer: long })).toEqual(['LABEL_IN_PROMPT']);
    expect(await codes({ prompt: 'a', answer: long, metadata: { seen: { [long]: true } } })).toEqual(['LABEL_IN_METADATA']);
    const expected = [{ args: ['some long input'], expected: long }];
    expect(await codes({ prompt: `a ${long}`, answer: expected })).toEqual(['LABEL_IN_PROMPT']);
    expect(await codes({ prompt: `a ${long}`, answer: ['another answer', long] })).toEqual(['LABEL_IN_PROMPT']);
    expect(await codes({ prompt: 'The quick\n  brown fox', answer: { tests: expected } })).toEqual(['LABEL_IN_PROMPT']);
    // What a test is given may be part of the question.
    expect(await codes({ prompt: 'try it with some long input', answer: expected })).toEqual([]);
  });
});

it('rows that ask the same are warned about, also under other ids', async () => {
  const { warnings } = await readDataset([
    { id: 'a', prompt: 'q', answer: 1 },
    { id: 'b', prompt: 'r', answer: 1 },
    { id: 'c', prompt: 'q', answer: 2 },
    { id: 'd', prompt: 'q', answer: 1 },
  ]);
  expect(warnings).toEqual([{ code: 'DUPLICATE_TASKS', message: expect.stringMatching(/row 3: .*\(and 1 more row\)$/) }]);
});

describe('a task without an id', () => {
  it('is named by what is asked: not by its place, not by the order of keys, and not by its answer', async () => {
    const [first, second] = await rows(
      { prompt: 'a', metadata: { x: 1, y: 2 }, answer: 1 },
      { prompt: 'b', metadata: { x: 1, y: 2 }, answer: 2 },
    );
    const [other, same] = await rows(
      { prompt: 'b', metadata: { x: 1, y: 2 }, answer: 9 },
      { answer: 8, metadata: { y: 2, x: 1 }, prompt: 'a' },
    );
    expect(first?.id).toMatch(/^row-[0-9a-f]{16}$/);
    expect([same?.id, other?.id]).toEqual([first?.id, second?.id]);
    expect(first?.id).not.toBe(second?.id);
  });

  it('that asks what another asks is told apart by a number', async () => {
    const ids = (await rows(ask(1), ask(1), ask(2), ask(1))).map(({ id }) => id);
    expect(ids).toEqual([ids[0], `${ids[0]}#2`, ids[2], `${ids[0]}#3`]);
  });
});
