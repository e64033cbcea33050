/** The graders of the guide are what the guide says they are: its samples are taken out of it, and used. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Grader } from '../../src/core/contracts.ts';
import { type GradedCase, gradeOnce } from '../../src/grading/inline.ts';
import { useScratch } from '../cli/command.ts';
import { needsSandbox } from '../fixtures/sandbox.ts';
import { readText } from '../house/sources.ts';

const samples = (page: string): readonly (readonly [name: string, text: string])[] =>
  [...readText(page).matchAll(/^```ts\n\/\/ (\S+\.ts)\n(.*?)^```$/gms)].map(([, name = '', text = '']) => [name, text]);

const home = useScratch();
beforeAll(async () => {
  for (const page of ['docs/guide/grading.md', 'docs/reference/graders.md'])
    for (const [name, text] of samples(page)) await home.write(name, text);
});

const graderOf = async (name: string): Promise<Grader> =>
  ((await import(pathToFileURL(join(home.dir, name)).href)) as { grader: Grader }).grader;
const looked = { id: 'c', type: 'function', function: { name: 'lookup', arguments: '{}' } } as const;

describe('the guide to grading', () => {
  it('names every sample, so that each is used here', () => {
    const all = [...readText('docs/guide/grading.md').matchAll(/^```ts$/gm)];
    const names = samples('docs/guide/grading.md').map(([name]) => name);
    expect(names).toEqual(
      ['first', 'second', 'second.test', 'parts', 'careful', 'composed', 'code', 'judged'].map((name) => `${name}.ts`),
    );
    expect(all).toHaveLength(names.length);
  });

  it.each<[string, GradedCase, object]>([
    ['first.ts', { said: 'It costs 184.', answer: 184 }, { reward: { value: 1 } }],
    // The mistake that the guide speaks of.
    ['first.ts', { said: 'It costs 1, 2, 3, 4 or 5.', answer: 4 }, { reward: { value: 1 } }],
    ['second.ts', { said: 'It costs 1, 2, 3, 4 or 5.', answer: 4 }, { reward: { value: 0 } }],
    ['parts.ts', { said: '4', answer: 4 }, { reward: { value: 0.8, success: true, parts: { correct: 1, called: 0 } } }],
    [
      'parts.ts',
      { messages: [{ role: 'assistant', content: null, tool_calls: [looked] }], answer: 4 },
      { reward: { value: 0.2, success: false, metrics: { turns: 1 } } },
    ],
    ['careful.ts', { output: '4', answer: 4 }, { reward: { value: 1 } }],
    ['careful.ts', { output: '4' }, { kind: 'failed', code: 'GRADER_UNSCORABLE' }],
    ['careful.ts', { output: 'the shop was closed', answer: 4 }, { kind: 'ungraded', why: /to blame/ }],
    ['composed.ts', { said: String.raw`\boxed{\frac{1}{2}}`, answer: '0.5' }, { reward: { value: 1, success: true } }],
    ['composed.ts', { said: '0.5', answer: '0.5' }, { reward: { value: 0, success: false } }],
    // Not asked: a wrong answer does not get as far as the judge.
    ['judged.ts', { said: '5', answer: 4 }, { reward: { value: 0 } }],
  ])('%s grades as it says', async (name, given, expected) => {
    const grade = await gradeOnce(await graderOf(name), given);
    if ('why' in expected) expect(grade).toMatchObject({ kind: 'ungraded', why: expect.stringMatching(expected.why as RegExp) });
    else expect(grade).toMatchObject(expected);
  });

  // Elsewhere it is refused: it wants a sandbox.
  it('code.ts pays for the share of tests that pass', needsSandbox, async () => {
    const said = '```js\nfunction add(a, b) { return a * b; }\n```';
    const answer = [
      { args: [2, 2], expected: 4 },
      { args: [2, 3], expected: 5 },
    ];
    expect(await gradeOnce(await graderOf('code.ts'), { said, answer })).toMatchObject({
      reward: { value: 0.5, success: false },
    });
  });

  it.each([['second.test.ts', 5]])('%s passes', async (name, tests) => {
    const args = ['--conditions=trainyard-source', '--test', join(home.dir, name)];
    const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: home.dir });
    expect(stdout).toMatch(new RegExp(`pass ${tests}\\n`));
  });
});
