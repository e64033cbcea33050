/** `GraderConfig.concurrency` in whole evaluations: graders in child processes and graders given as values. */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { asGrader, asWorkflow, moduleOf } from '../../src/core/define.ts';
import { evaluateOnly } from '../../src/evaluation/evaluate.ts';
import { useScratch } from '../cli/command.ts';

const home = useScratch();
let heldOut: string;
beforeAll(async () => {
  const line = (i: number) => JSON.stringify({ prompt: `Question ${i}?`, answer: 'x' });
  heldOut = await home.write('held-out.jsonl', Array.from({ length: 6 }, (_, i) => line(i)).join('\n'));
});

/** Writes down when each grading begins and ends. */
const entryWith = (maxConcurrent: number | null) => `
import { appendFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { AgentWorkflow, ConcurrencyConfig, Grader, GraderConfig } from 'trainyard/osmosis';
const note = (text) => appendFileSync(new URL('./notes-${maxConcurrent}.txt', import.meta.url), text);
export class Ask extends AgentWorkflow {
  async run(ctx) { await ctx.model().generate({ messages: ctx.prompt, maxTokens: 4 }); }
}
export const config = new GraderConfig({ name: 'slow', concurrency: new ConcurrencyConfig({ maxConcurrent: ${maxConcurrent} }) });
export class Slow extends Grader {
  async grade(ctx) { note('('); await sleep(60); note(')'); ctx.setReward(1); }
}
`;

const notesOf = (maxConcurrent: number | null) => readFile(join(home.dir, `notes-${maxConcurrent}.txt`), 'utf8');

describe('the concurrency of a grader', () => {
  it('holds for child processes, however many the run may have', async () => {
    const entry = await home.write('one.ts', entryWith(1));
    await evaluateOnly({ entry, heldOut, graderWorkers: 4 });
    expect(await notesOf(1)).toBe('()'.repeat(6));
  });

  it('holds for a grader given as a value, and there is no limit without it', async () => {
    for (const maxConcurrent of [2, null]) {
      const exports = (await import(await home.write(`value-${maxConcurrent}.ts`, entryWith(maxConcurrent)))) as {
        readonly Ask: object;
        readonly Slow: object;
      };
      const module = moduleOf(exports);
      await evaluateOnly({
        entry: { workflow: asWorkflow(exports.Ask, module)!, grader: asGrader(exports.Slow, module)! },
        heldOut,
      });
    }
    expect(await notesOf(2)).not.toContain('(((');
    expect(await notesOf(2)).toContain('((');
    expect(await notesOf(null)).toContain('(((');
  });
});
