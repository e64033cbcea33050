import { expect, it, describe as suite } from 'vitest';
import { done, evalEnd, progress, runStart, stepEnd } from '../../../test/fixtures/cli/events.ts';
import type { RunEvent } from '../../core/events.ts';
import { shellWord } from '../../settings/settings.ts';
import { describe, evaluationSummary, textLines } from './print.ts';
import { asCalled, cellsOf, duration } from './text.ts';

const lines = (event: RunEvent): readonly string[] => describe(event, 'examples/shop/agent.ts');

suite('plain lines', () => {
  it('say before a run what is planned, and what that can cost', () => {
    const planned = { rollouts: 200, calls: 3200, sampledTokens: 13_107_200 };
    const [, , line] = lines({
      ...(runStart() as Extract<RunEvent, { type: 'run-start' }>),
      planned: { ...planned, cost: 7.864 },
    });
    expect(line).toBe(
      'Planned up to 200 rollouts, more only if whole steps find no signal: at most 3.2K model calls and 13.1M tokens; that costs at most 7.86, prompts not included',
    );
    expect(lines({ ...runStart(), planned } as RunEvent)[2]).toMatch(/ and 13\.1M tokens$/);
  });

  it('say when an evaluation was', () => {
    const all = [evalEnd('before', 0, 0.1), evalEnd('during', 20, 0.5), evalEnd('after', 40, 0.9), evalEnd('only', 0, 0.9)];
    const said = all.map((event) => /^(?:Held-out s|S)uccess(.*?): \d+\.\d %/.exec(lines(event)[0] ?? '')?.[1]);
    expect(said).toEqual([' before training', ' after step 20', ' after training', '']);
  });

  it('say that success is unknown where nothing was graded, instead of 0 %', () => {
    const event = evalEnd('only', 0, 0) as Extract<RunEvent, { type: 'eval-end' }>;
    const ungraded = { ...event, score: { ...event.score, meanReward: null, failed: event.score.n } };
    expect(lines(ungraded)[0]).toMatch(/^Success: unknown \(none graded\) of \d+ tasks, \d+ failed, at/);
  });

  it('say of a step what it took, saving included, and what was stale or failed', () => {
    expect(lines(stepEnd())[0]).toMatch(
      /^step {3}1 {2}reward 0\.50 █{12}░{12} {2}8\/11 groups with signal {2}4000 tokens {2}2\.0 s$/,
    );
    expect(lines(stepEnd({ staleGroups: 2, failedGrades: 1 }))[0]).toMatch(
      /signal {2}2 stale {2}4.* 0 rollouts and 1 gradings failed$/,
    );
    expect(lines(stepEnd({ staleGroups: 2, staleRule: 'weigh' }))[0]).toContain('  2 stale (weighed)  ');
  });

  it('say below a step what its rewards were made of, by name, eight at most, and how many rollouts were not graded', () => {
    const parts = { format: 0.9, 'exact\nmatch': 0.25 };
    expect(lines(stepEnd({ parts, metrics: { tries: 3 } }))[1]?.trim()).toBe('format 0.90  exact⏎match 0.25  tries 3.00');
    const many = Object.fromEntries(Array.from({ length: 11 }, (_, i) => [`p${i}`, i]));
    expect(lines(stepEnd({ parts: many }))[1]).toMatch(/p0 0\.00 .* p7 7\.00 {2}\+3 more$/);
    expect(lines(stepEnd())).toHaveLength(1);
    expect(lines(stepEnd({ ungraded: 4 }))[0]).toMatch(/ {2}4 not graded {2}/);
  });

  it('say that a run is resumed, and after which step', () => {
    expect(lines(runStart())[0]).toMatch(/^Training examples\/shop\/agent\.ts for 40 steps: 1000 tasks/);
    expect(lines(runStart({ resumedAt: 12 }))[0]).toMatch(/^Going on with examples\/shop\/agent\.ts after step 12 of 40/);
  });

  it('say at the start how large a model is, how much of it is trained, and what memory it may take', () => {
    const plan = {
      parameters: 134_515_008,
      trained: 4_884_480,
      loraRank: 16,
      context: 1024,
      bytes: 1.9e9,
      text: 'weights 0.54 GB',
    };
    expect(lines(runStart({ model: '/x/SmolLM2.gguf', plan }))[1]).toBe(
      'SmolLM2.gguf: 134.5 M parameters, 4.9 M trained (LoRA rank 16), context 1,024; memory up to 1.90 GB: weights 0.54 GB',
    );
  });

  it('obey nothing that a workflow put into a message', () => {
    const warning: RunEvent = { type: 'warning', code: 'STRAY_REJECTION', message: 'a\u001b[31m\nb', hint: '\u0007' };
    expect(lines(warning)).toEqual(['warning STRAY_REJECTION: a·[31m⏎b (·)']);
  });

  it('say how far it is where nothing else was said for ten seconds, and then not again for ten', () => {
    let clock = 0;
    const said: string[] = [];
    const out = { write: (line: string) => said.push(line) > 0 } as unknown as NodeJS.WritableStream;
    const emit = textLines(out, () => clock);
    const at = (seconds: number, event: RunEvent): void => {
      clock = 1000 * seconds;
      emit(event);
    };
    for (let second = 0; second < 24; second++)
      at(second, progress({ phase: 'evaluating', done: second, of: 30, failed: second > 15 ? 3 : 0 }));
    expect(said).toEqual(['Evaluating: 10 of 30 rollouts\n', 'Evaluating: 20 of 30 rollouts, 3 failed\n']);
    at(25, stepEnd());
    at(34, progress());
    expect(said).toHaveLength(3);
    at(35, progress());
    at(99, progress({ done: 0, of: 0 }));
    expect(said.slice(3)).toEqual(['Rolling out: 37 of 64 rollouts\n']);
  });

  it('keep small numbers that plain rounding would lose, and times below a tenth of a second', () => {
    expect(lines(stepEnd({ metrics: { cost: 0.000_423, none: 0, part: 0.25 } }))[1]?.trim()).toBe(
      'cost 0.00042  none 0.00  part 0.25',
    );
    expect(lines(stepEnd({ rolloutSeconds: 0.01, trainSeconds: 0.002, saveSeconds: 0 }))[0]).toMatch(/ {2}12 ms$/);
  });

  it('draw a bar only for rewards between 0 and 1', () => {
    expect(lines(stepEnd({ reward: 0.5 }))[0]).toContain('reward 0.50 ████████████░░░░░░░░░░░░  ');
    for (const reward of [1.2, 40, -3, Number.NaN]) expect(lines(stepEnd({ reward }))[0]).not.toMatch(/[█░]/);
  });

  it('are none for errors, and at a terminal for progress, which the view shows', () => {
    expect(lines(progress())).toEqual([]);
    expect(lines({ type: 'error', code: 'INTERNAL', message: 'm' })).toEqual([]);
  });
});

suite('the summary', () => {
  const summary = (event: RunEvent): string => lines(event).join('\n');

  it('says what changed, where the model is and how to measure it again', () => {
    expect(summary(done())).toContain('Done in 42 s, 40 steps: held-out success 3.0 % → 78.0 %');
    expect(summary(done())).toContain('The trained model is in runs/shop-1/checkpoints/step-000040\n');
    const command = asCalled('trainyard eval examples/shop/agent.ts --model runs/shop-1/checkpoints/step-000040');
    expect(summary(done())).toContain(`Measure it again with:\n  ${command}\n`);
    expect(summary(done({ turns: 200 }))).toContain(`${command} --turns 200\n`);
    expect(summary(done({ trainable: ['a', 'b c'] }))).toContain(`${command} --trainable 'a,b c'\n`);
    expect(summary(done({ flow: 'one', flows: 'flows.yaml' }))).toContain(`${command} --flow one --flows flows.yaml\n`);
    expect(summary(done())).not.toContain('--resume');
    expect(summary(done())).not.toContain('Stopped');
  });

  it('points to the best model where there is one, and to the last if that is another', () => {
    const best = { step: 20, success: 0.81, checkpoint: 'runs/shop-1/checkpoints/best' };
    expect(summary(done({ best }))).toContain(
      'The best model on the way, 81.0 % after step 20, better than the last on the same tasks, is in runs/shop-1/checkpoints/best\n',
    );
    expect(summary(done({ best, after: null }))).toContain('after step 20, is in');
    expect(summary(done({ best }))).toContain('--model runs/shop-1/checkpoints/best\n');
    expect(summary(done({ best }))).toContain('The last one is in runs/shop-1/checkpoints/step-000040');
    expect(summary(done({ best: { ...best, checkpoint: 'a' }, checkpoint: 'a' }))).toContain('The trained model is in a\n');
  });

  it.each([
    ['solved', 'nothing left to learn'],
    ['patience', 'better'],
    ['max-time', 'time'],
    ['max-tokens', 'tokens'],
  ] as const)('says why a run ended early: %s', (ending, reason) => {
    expect(summary(done({ ending }))).toMatch(new RegExp(`Stopped early: .*${reason}`));
    expect(summary(done({ ending })).includes('--resume')).toBe(ending.startsWith('max-'));
  });

  it('does not say Done where nothing got better, and says what is solved already', () => {
    const score = { success: 0.25, ci: [0, 1], n: 4, failed: 0, ungraded: 0, meanReward: 0.25 } as const;
    const same = summary(done({ before: score, after: score }));
    expect(same).toContain('Ended without improvement after 42 s, 40 steps: held-out success 25.0 % → 25.0 %');
    expect(summary(done({ before: score, after: { ...score, meanReward: 0.3 } }))).toContain('Done in 42 s');
    const none = { before: null, after: null, steps: 0, checkpoint: null, best: null } as const;
    expect(summary(done({ ...none, ending: 'max-time' }))).toContain('Ended without improvement after 42 s, 0 steps');
    const solved = summary(done({ ...none, ending: 'solved' }));
    expect(solved).toContain('Solved already, after 42 s, 0 steps\nStopped early: every rollout succeeded, so there is nothing');
  });

  it('of an interrupted run ends with the command that goes on with it', () => {
    expect(summary(done({ ending: 'interrupted' }))).toMatch(/^\nInterrupted after 42 s, 40 steps/);
    expect(lines(done({ ending: 'interrupted' })).at(-1)).toBe(`  ${asCalled('trainyard train --resume runs/shop-1')}`);
    expect(lines(done({ ending: 'interrupted', run: "runs/it's mine" })).at(-1)).toContain(`--resume 'runs/it'\\''s mine'`);
  });
});

suite('phrases', () => {
  it.each([
    [0, '0:00'],
    [59.6, '1:00'],
    [3599.7, '1:00:00'],
    [11_109, '3:05:09'],
    [86_400 * 2 + 3600 * 5, '2 d 5 h'],
    [1e12, 'over 99 d'],
    [-5, '0:00'],
  ])('%d seconds are %s', (seconds, text) => {
    expect(duration(seconds)).toBe(text);
  });

  it.each([
    ['runs/shop-2026', 'runs/shop-2026'],
    ['my runs/1', `'my runs/1'`],
    ['$(rm)', `'$(rm)'`],
    ['', `''`],
  ])('the path %j is the shell word %s', (path, word) => {
    expect(shellWord(path)).toBe(word);
  });
});

const SHARES = { success: 0.5, ci: [0.1, 0.9], n: 2, failed: 0, ungraded: 0, meanReward: null, meanRewardCi: null } as const;

suite('the summary of an evaluation', () => {
  it('stays a table, whatever tags are called', () => {
    const byTag = { ['x'.repeat(300)]: SHARES, 漢字のタグ: SHARES, '\u001b[31mred\n': SHARES };
    const numbers = { ...SHARES, temperature: 0, perTask: 1, rollouts: 2, passAtK: { 1: 0.5 }, passHatK: { 1: 0.5 }, byTag };
    const lines = evaluationSummary({ type: 'done', run: null, seconds: 1, ...numbers }).filter((line) => line !== '');
    expect(lines).toHaveLength(5);
    expect(new Set(lines.map(cellsOf)).size, 'every line ends in the same column').toBe(1);
    expect(cellsOf(lines[0] ?? '')).toBeLessThan(120);
    expect(lines.join('')).not.toContain('\u001b');
  });
});
