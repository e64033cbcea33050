/** What one grading does to its process, and what of it the next one meets. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { inputFor } from '../../test/fixtures/grader/input-for.ts';
import type { Order } from '../../test/fixtures/grader/obedient.ts';
import type { Grade } from '../core/types.ts';
import { type GraderPool, openGraderPool } from './pool.ts';

const module = new URL('../../test/fixtures/grader/obedient.ts', import.meta.url).href;
let pool: GraderPool;
beforeAll(async () => {
  pool = await openGraderPool({ module, exportName: 'obedient', workers: 1 });
});
afterAll(() => pool[Symbol.asyncDispose]());

const ask = (what: Order['do']): Promise<Grade> => pool.grade(inputFor('0', { do: what }));
const numberOfProcess = (): Promise<Grade> => ask('answer with a number of the process');

describe('a grading process', () => {
  it('stays warm after a grading that only failed', async () => {
    const before = await numberOfProcess();
    for (const failure of ['throw', 'throw something odd', 'return NaN', 'cannot score'] as const) {
      expect(await ask(failure)).toMatchObject({ kind: 'failed' });
    }
    expect(await numberOfProcess()).toEqual(before);
  });

  it.each(['change a built-in and throw', 'leave a timer and throw'] as const)(
    'is not used again after a grading that failed (%s), whose reason is still told',
    async (harm) => {
      const before = await numberOfProcess();
      expect(await ask(harm)).toMatchObject({
        code: 'GRADER_FAILED',
        message: expect.stringMatching(/threw Error: no such unit/),
      });
      const after = await numberOfProcess();
      expect(after).toMatchObject({ kind: 'graded' });
      expect(after).not.toEqual(before);
    },
  );

  it('that has a changed built-in gives no reward, and is not used again', async () => {
    const before = await numberOfProcess();
    expect(await ask('change a built-in and answer 1')).toEqual({
      kind: 'failed',
      code: 'GRADER_FAILED',
      message: "the grader's process changed the built-in Array.prototype.includes before it answered",
    });
    expect(await numberOfProcess()).not.toEqual(before);
  });

  it('has functions of Math and the like that nobody can change', async () => {
    expect(await ask('change a function of Math and answer 1')).toMatchObject({
      code: 'GRADER_FAILED',
      message: expect.stringMatching(/Cannot assign to read only property 'max'/),
    });
  });

  it('in which somebody else writes to the channel gives no reward, not even its own', async () => {
    expect(await ask('answer for every call it can think of, then 1')).toMatchObject({
      code: 'GRADER_FAILED',
      message: expect.stringMatching(/^the grader's process wrote what is no answer to its channel before it answered/),
    });
    expect(await ask('answer 1')).toMatchObject({ reward: { value: 1 } });
  });
});
