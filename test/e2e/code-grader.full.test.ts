/** The example with unit tests: its tasks can be solved, in child processes and sandboxes. That it runs is in closed-network.full.test.ts. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { Task } from '../../src/core/types.ts';
import { callGrader } from '../../src/grading/call.ts';
import { jsonLines, ROOT } from '../cli/command.ts';
import { inputFor } from '../fixtures/graders/graded-code.ts';
import { needsSandbox } from '../fixtures/sandbox.ts';

const TASKS = join(ROOT, 'examples/graders/code.jsonl');

const SOLUTIONS: Readonly<Record<string, { readonly right: string; readonly half: string; readonly share: number }>> = {
  add: { right: 'const add = (a, b) => a + b;', half: 'const add = (a, b) => Math.round(a + b);', share: 2 / 3 },
  unique: {
    right: 'const unique = (list) => [...new Set(list)];',
    half: 'const unique = (list) => [...new Set(list)].sort();',
    share: 2 / 3,
  },
  'sum-lines': {
    right:
      "import { readFileSync } from 'node:fs';\nconsole.log(readFileSync(0, 'utf8').trim().split('\\n').map(Number).reduce((a, b) => a + b));",
    half: 'console.log(6);',
    share: 1 / 2,
  },
};

describe('examples/graders/code.ts, in a sandbox that this system has', needsSandbox, () => {
  it('gives a right solution of each task 1, and half of one its share', async () => {
    const { grader } = (await import('../../examples/graders/code.ts')) as typeof import('../../examples/graders/code.ts');
    const tasks = jsonLines<Task>(await readFile(TASKS, 'utf8'));
    expect(tasks.map(({ id }) => id)).toEqual(Object.keys(SOLUTIONS));
    const ctx = { signal: new AbortController().signal, model: undefined };
    for (const { id, answer } of tasks) {
      const graded = (said: string) => callGrader(grader, inputFor(`\`\`\`js\n${said}\n\`\`\``, answer), ctx);
      const { right, half, share } = SOLUTIONS[id]!;
      expect(await graded(right)).toMatchObject({ kind: 'graded', reward: { value: 1, success: true } });
      expect(await graded(half)).toMatchObject({ kind: 'graded', reward: { value: share, success: false } });
    }
  });
});
