/** What workflows print, through the real gateway and runner, with a scripted engine in the policy's place. */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it, onTestFinished } from 'vitest';
import { scriptedRollouts } from '../../test/fixtures/scripted-rollouts.ts';
import { catchPrints, outsideRollout } from '../core/context.ts';
import type { WorkflowContext } from '../core/contracts.ts';
import { defineWorkflow } from '../core/define.ts';
import type { Trajectory } from '../core/types.ts';

const printedIn = ({ logs = [] }: Trajectory) => logs.flatMap(({ text, from }) => (from === 'workflow' ? [text] : []));

/** What reaches the stream while prints are caught. */
function passing(): string[] {
  const passed: string[] = [];
  const { stdout } = process;
  const original = stdout.write;
  stdout.write = ((chunk: string) => passed.push(chunk) > 0) as typeof stdout.write;
  const caught = catchPrints();
  onTestFinished(() => {
    caught[Symbol.dispose]();
    stdout.write = original;
  });
  return passed;
}

const rollouts = (run: (ctx: WorkflowContext) => Promise<void>) =>
  scriptedRollouts(
    defineWorkflow(async (ctx) => {
      await run(ctx);
      await ctx.model().generate({ messages: ctx.prompt });
      return { reward: 1 };
    }),
  );

describe('what workflows print', () => {
  it('stays with its rollout, however many run at once, and does not reach the terminal', async () => {
    const passed = passing();
    await using bench = await rollouts(async ({ task, log }) => {
      for (let i = 0; i < 5; i++) {
        const [own, other] = i % 2 === 0 ? (['stdout', 'stderr'] as const) : (['stderr', 'stdout'] as const);
        const [start, end] = [Buffer.from(`${task.id} says €`).subarray(0, -1), Buffer.from(`€${i}\n`).subarray(2)];
        process[own].write(start);
        await sleep(Math.random() * 3);
        process[other].write('');
        process[own].write(end.toString('hex'), 'hex');
      }
      log('done');
      outsideRollout(() => process.stdout.write('an event\n'));
    });
    process.stdout.write('before\n');
    const names = Array.from({ length: 64 }, (_, i) => `t${i}`);
    const ended = await Promise.all(names.map((id) => bench.run({ id })));
    expect(ended.map(printedIn)).toEqual(names.map((id) => [0, 1, 2, 3, 4].map((i) => `${id} says €${i}`)));
    expect(ended[7]!.logs?.at(-1)).toMatchObject({ text: 'done' });
    expect(new Set(passed)).toEqual(new Set(['before\n', 'an event\n']));
  });

  it('is bounded in lines and characters, and a last line says how much was dropped', async () => {
    passing();
    await using bench = await rollouts(async ({ task }) => {
      const text = task.id === 'lines' ? 'x\n'.repeat(1_200) : `${'y'.repeat(70_000)}\n`.repeat(2);
      process.stdout.write(`${text}end`);
    });
    const lines = printedIn(await bench.run({ id: 'lines' }));
    expect([lines.length, lines.at(-1)]).toEqual([1_001, '… and 404 more characters, which were not kept']);
    const long = printedIn(await bench.run({ id: 'long' }));
    expect(long.map(({ length }) => length)).toEqual([70_000, 30_000, 48]);
    expect(long[2]).toBe('… and 40004 more characters, which were not kept');
  });

  it('keeps a last line without a newline, and nothing that comes after the end', async () => {
    passing();
    await using bench = await rollouts(async () => {
      setTimeout(() => process.stdout.write('late\n'), 5);
      process.stdout.write('no newline');
    });
    const ended = await bench.run();
    await sleep(10);
    expect(printedIn(ended)).toEqual(['no newline']);
  });
});
