/** What graders are made with: no factory takes an option that it does not have, or says what is wrong in the words of the engine. */
import { describe, expect, it } from 'vitest';
import * as graders from '../../src/graders.ts';

const exact = graders.exactMatch();
const model = { baseURL: 'http://localhost:1', model: 'm' };
type Make = (options: never) => unknown;

const FACTORIES: readonly (readonly [string, Make, string])[] = [
  ['exactMatch', graders.exactMatch, 'trim'],
  ['normalisedMatch', graders.normalisedMatch, 'of'],
  ['numberMatch', graders.numberMatch, 'strict'],
  ['mathMatch', graders.mathMatch, 'unmarked'],
  ['multipleChoice', graders.multipleChoice, 'choices'],
  ['jsonMatch', graders.jsonMatch, 'schema'],
  ['toolCalls', graders.toolCalls, 'others'],
  ['regexMatch', (options) => graders.regexMatch(/a/, options), 'flags'],
  ['unitTests', graders.unitTests, 'partial'],
  ['judge', graders.judge, 'scale'],
  ['rubric', (options) => graders.rubric([{ name: 'a', description: 'b' }], options), 'scale'],
  ['clipped', (options) => graders.clipped(exact, options), 'max'],
  ['scaled', (options) => graders.scaled(exact, options), 'plus'],
  ['gated', (options) => graders.gated(exact, exact, options), 'floor'],
  ['weighted', (options) => graders.weighted({ a: [exact, 1] }, options), 'success'],
  ['lengthPenalty', graders.lengthPenalty, 'free'],
  ['formatPenalty', (options) => graders.formatPenalty(/a/, 1, options), 'of'],
  ['repetitionPenalty', graders.repetitionPenalty, 'words'],
];

function refusal(make: () => unknown): string {
  try {
    make();
  } catch (error) {
    const { code, message } = error as { readonly code?: string; readonly message: string };
    return `${code}: ${message}`;
  }
  return 'accepted';
}

/** What takes no options of a grader. */
const OTHERS = ['gradeOnce', 'maximum', 'minimum', 'openSandbox', 'rejected', 'unscorable'];

describe('what a grader is made with', () => {
  it('is checked here for every factory that there is', () => {
    expect([...FACTORIES.map(([name]) => name), ...OTHERS].toSorted()).toEqual(Object.keys(graders).toSorted());
  });

  it.each(FACTORIES)('%s refuses an option that it does not have, and what is no object of options', (name, make, option) => {
    const misspelt = `${option.slice(0, -1)}x${option.slice(-1)}`;
    const meant = option.length < 4 ? '' : `, did you mean ${option}?`;
    expect(refusal(() => make({ [misspelt]: 1 } as never))).toContain(
      `GRADER_INVALID: ${name}: it has no option ${misspelt}${meant}`,
    );
    expect(refusal(() => make({ somethingElse: 1 } as never))).toContain(`it has no option somethingElse, expected `);
    if (name === 'rubric') return;
    expect(refusal(() => make(null as never))).toBe(`GRADER_INVALID: ${name}: expected an object of options, found null`);
    expect(refusal(() => make(5 as never))).toBe(`GRADER_INVALID: ${name}: expected an object of options, found 5`);
  });

  it('must be there where it is needed', () => {
    for (const make of [
      graders.jsonMatch,
      graders.unitTests,
      graders.judge,
      graders.lengthPenalty,
      graders.repetitionPenalty,
    ] as Make[]) {
      expect(refusal(() => make(undefined as never))).toMatch(
        /^GRADER_INVALID: \w+: expected an object of options, found undefined$/,
      );
    }
    expect(refusal(() => graders.clipped(exact, undefined as never))).toMatch(/^GRADER_INVALID: clipped: expected an object of/);
    expect(refusal(() => graders.rubric([null] as never, { model }))).toMatch(
      /^GRADER_INVALID: rubric: criterion 1: expected an object/,
    );
  });

  it('never holds a key: it is refused and not repeated', () => {
    for (const name of ['apiKey', 'api_key', 'key', 'token']) {
      const said = refusal(() => graders.judge({ instructions: 'x', model: { ...model, [name]: 'sk-hunter2' } } as never));
      expect(said).toContain(`GRADER_INVALID: judge: model has no option ${name}`);
      expect(said).toContain('put the key into the environment and name the variable in model.apiKeyEnv');
      expect(said).not.toContain('hunter2');
    }
    const other = refusal(() => graders.judge({ instructions: 'x', model: { ...model, temprature: 1 } } as never));
    expect(other).toContain('judge: model has no option temprature, expected baseURL, model, apiKeyEnv');
    const price = { prompt: 1, competion: 1 };
    expect(refusal(() => graders.judge({ instructions: 'x', model, price } as never))).toMatch(
      /price has no option competion, did you mean completion\?; price\.completion is missing/,
    );
  });

  it('is a grader, not what makes one', async () => {
    const uncalled = graders.exactMatch as never;
    const says = /^GRADER_INVALID: .*expected a grader, found the function exactMatch$/;
    expect(refusal(() => graders.gated(uncalled, exact))).toMatch(says);
    expect(refusal(() => graders.weighted({ a: [uncalled, 1] }))).toMatch(says);
    await expect(graders.gradeOnce(uncalled, { said: 'x' })).rejects.toMatchObject({
      code: 'GRADER_INVALID',
      message: 'gradeOnce: expected a grader, found the function exactMatch',
      hint: expect.stringContaining('call what makes a grader'),
    });
    await expect(graders.gradeOnce(exact, undefined as never)).rejects.toMatchObject({
      code: 'USAGE',
      message: 'gradeOnce got undefined for a case, expected an object',
    });
    await expect(graders.gradeOnce(undefined as never, {})).rejects.toMatchObject({ code: 'GRADER_INVALID' });
  });
});
