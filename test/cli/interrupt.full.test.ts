/** Ctrl-C, SIGTERM and SIGHUP, once and twice, as real signals to real processes: in a pipe, whose reader may leave, and at a terminal. */
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, it } from 'vitest';
import { ROOT } from './command.ts';
import { onTerminal, type TerminalOptions } from './pty.ts';

const WORK = join(ROOT, 'test/fixtures/cli/work.ts');
const CTRL_C = '\u0003';

async function piped(what: string, ...signals: readonly (NodeJS.Signals | number | 'reader leaves')[]) {
  const child = spawn(process.execPath, ['--conditions=trainyard-source', WORK, what], { stdio: ['ignore', 'pipe', 'pipe'] });
  let said = '';
  const begun = new Promise<void>((resolve) => {
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      said += text;
      if (said.includes('step   2')) resolve();
    });
  });
  const ended = new Promise<number | null>((resolve) => child.on('close', resolve));
  await begun;
  const delivered: boolean[] = [];
  for (const signal of signals) {
    if (typeof signal === 'number') await sleep(signal);
    else if (signal === 'reader leaves') child.stdout.destroy();
    else delivered.push(child.kill(signal));
  }
  const code = await Promise.race([ended, sleep(15_000, 'still running')]);
  child.kill('SIGKILL');
  return { code, said, delivered };
}

describe('the first signal', () => {
  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 0],
    ['SIGHUP', 0],
  ] as const)('%s lets the step in hand finish, and the process ends with %i', async (signal, expected) => {
    const { code, said } = await piped('softly', signal);
    expect(said).toContain('warning INTERRUPTED: finishing what is in hand; once more to leave at once');
    expect(said).toMatch(/Go on with:\n {2}(npx )?trainyard train --resume runs\/shop-1/);
    expect(code).toBe(expected);
  });

  it('SIGTERM has work that does not finish give up after its grace; Ctrl-C leaves it all the time it needs', async () => {
    expect((await piped('when told to give up', 'SIGTERM')).code).toBe(143);
    const patient = await piped('when told to give up', 'SIGINT', 1500, 'SIGINT');
    expect(patient.delivered).toEqual([true, true]);
    expect(patient.code).toBe(130);
  });

  it('is also that the reader of the output leaves; Ctrl-C that ended the reader too is no second one', async () => {
    expect((await piped('softly', 'reader leaves')).code).toBe(141);
    expect((await piped('softly', 'SIGINT', 'reader leaves')).code).toBe(130);
  });

  it('arriving twice at once, as through npm, is one', async () => {
    const { code, said } = await piped('softly', 'SIGINT', 5, 'SIGINT');
    expect(said).toContain('Go on with');
    expect(code).toBe(130);
  });
});

describe('the second signal', () => {
  it.each([
    ['SIGINT', 130],
    ['SIGTERM', 143],
  ] as const)('%s leaves at once with %i, and is not taken for a failure of the workflow', async (signal, expected) => {
    const { code, said } = await piped('never', 'SIGINT', 500, signal);
    expect(said).not.toContain('Go on with');
    expect(code).toBe(expected);
  });
});

describe('at a terminal', () => {
  const run = (what: string, options: TerminalOptions = {}) =>
    onTerminal([process.execPath, '--conditions=trainyard-source', WORK, what], { env: { NO_COLOR: '1' }, ...options });
  const counts = (lines: readonly string[], pattern: RegExp): number => lines.filter((line) => pattern.test(line)).length;

  it.each([
    ['once finishes the step, says how to go on, and gives the cursor back', 'softly', 1],
    ['twice leaves at once, with the last view standing and the cursor shown', 'never', 0],
  ])('Ctrl-C %s', async (_, what, ways) => {
    const { terminal, until, type, ended } = run(what);
    await until('3/1000');
    type(CTRL_C);
    if (what === 'never') {
      await until('last step: rolling out');
      await sleep(400);
      type(CTRL_C);
    }
    expect(await ended).toBe(130);
    expect(terminal.cursorShown).toBe(true);
    expect(counts(terminal.text, /^ {2}(npx )?trainyard train --resume runs\/shop-1$/)).toBe(ways);
    expect(counts(terminal.text, /^step /)).toBe(1);
    expect(counts(terminal.text, /agent\.ts ·/)).toBe(1);
    expect(terminal.text.join('\n')).not.toContain('^C');
  });

  it.each([
    ['throws', /^error INTERNAL: TypeError/],
    ['fails', /STORE_FAILED|the disk is full/],
  ])('an error (%s) leaves the cursor shown and stands on a line of its own', async (what, message) => {
    const { terminal, ended } = run(what);
    expect(await ended).toBe(1);
    expect(terminal.cursorShown).toBe(true);
    expect(counts(terminal.text, message)).toBeGreaterThan(0);
    expect(counts(terminal.text, /agent\.ts ·/)).toBe(1);
  });

  it('a window that gets narrower has a narrower view, and nothing of the wide one is left', async () => {
    const { terminal, until, type, ended } = run('softly', { narrowedTo: 50 });
    await until('Training examples/shop/agent.ts · models/base');
    await until('\nagent.ts · models/base');
    type(CTRL_C);
    await ended;
    const view = terminal.text.filter((line) => /agent\.ts ·|━|─|⡀|█/.test(line));
    expect(view.length).toBeGreaterThan(2);
    expect(Math.max(...view.map((line) => line.length))).toBeLessThan(50);
  });

  it('what the agent prints scrolls away above the view, line by line', async () => {
    const { terminal, until, type, ended } = run('softly');
    await until('6/1000');
    type(CTRL_C);
    await ended;
    const printed = terminal.text.filter((line) => line.includes('whole line'));
    expect(printed.length).toBeGreaterThan(4);
    expect(printed).toEqual(printed.map((_, i) => (i === 0 ? 'whole line 1' : `half a line ${i}whole line ${i + 1}`)));
    const complaints = terminal.text.filter((line) => line.includes('complaint'));
    expect(complaints).toEqual(printed.map((_, i) => `complaint ${i + 1}`));
    expect(terminal.text.filter((line) => line.includes(' of two'))).toEqual(printed.map(() => ' of two lines'));
    expect(terminal.text.at(-1) === '' ? terminal.text.at(-2) : terminal.text.at(-1)).toBe(`half a line ${printed.length}`);
  });
});
