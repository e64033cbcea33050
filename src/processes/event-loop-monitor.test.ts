import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { blamed, ownTime } from './event-loop-monitor.ts';

/** A program of its own: what runs under a test's loader has other line numbers. */
const program = fileURLToPath(new URL('../../test/fixtures/processes/stalls.ts', import.meta.url));
const folder = sharedFolder();

async function found(ways: readonly string[], { tries = 100, own = '', thresholdMs = 200 } = {}): Promise<readonly string[]> {
  const env = { ...process.env, TEST_FOLDER: folder };
  const args = [program, own, String(thresholdMs), String(tries), ...ways];
  const { stdout } = await promisify(execFile)(process.execPath, args, { env });
  return JSON.parse(stdout) as string[];
}

const lineOf = (way: string): number =>
  readFileSync(program, 'utf8')
    .split('\n')
    .findIndex((line) => line.endsWith(`// ${way}`)) + 1;

describe.concurrent('what blocks the event loop', () => {
  it.each(['busyLoop', 'runShell', 'runProgram', 'readSlowFile', 'waitForAtomics'])(
    'is named by file, line and function: %s',
    async (way) => {
      const place = `^test/fixtures/processes/stalls\\.ts:${lineOf(way)} ${way}`;
      const warning = new RegExp(`${place} blocked all rollouts for \\d+\\.\\d s; use`);
      expect(await found([way])).toEqual([expect.stringMatching(warning)]);
    },
  );

  it('is told once for each place', async () => {
    const warnings = await found(['waitForAtomics', 'runShell', 'waitForAtomics=2']);
    expect(warnings.map((warning) => warning.split(' ')[1])).toEqual(['waitForAtomics', 'runShell']);
  });

  it('is told again with a count', async () => {
    const warnings = await found(['waitForAtomics', 'waitForAtomics'], { tries: 200, thresholdMs: 80 });
    expect(warnings).toHaveLength(2);
    expect(warnings[1]).toMatch(/blocked all rollouts 10 times, \d+\.\d s in all/);
  });

  it.each(['busyLoop', 'doNothing'])('is nobody’s fault where the code is our own, or nothing blocks: %s', async (way) => {
    const own = way === 'doNothing' ? '' : new URL('../../', import.meta.url).href;
    expect(await found([way], { tries: 2, own })).toEqual([]);
  });
});

it('time in which the main thread waited for a processor is nobody’s fault', () => {
  expect(ownTime(1000, '123456789 250000000 42\n')).toBe(750);
  expect(ownTime(1000, '')).toBe(1000);
});

describe('the place that is named', () => {
  const own = 'file:///app/node_modules/trainyard/dist/';
  const site = (scriptName: string, functionName = 'f', lineNumber = 1) => ({ scriptName, functionName, lineNumber });

  it('is the innermost that is neither Node’s nor a package’s', () => {
    const stack = [
      site(''),
      site('node:child_process', 'execSync'),
      site('file:///app/node_modules/shelljs/exec.js', 'exec'),
      site('file:///app/my%20agent.ts', 'runTool', 57),
      site('file:///app/agent.ts', 'run', 9),
      site(`${own}rollout/runner.js`),
    ];
    expect(blamed(stack, own)).toEqual({ file: '/app/my agent.ts', line: 57, functionName: 'runTool' });
  });

  it('is none where Trainyard itself was at work, though a user had called it, or where there is only Node', () => {
    const ours = [site('node:fs'), site(`${own}store/sqlite.js`), site('file:///app/agent.ts')];
    const through = [site('file:///app/node_modules/zod/index.js'), site(`${own}gateway/ask.js`)];
    for (const stack of [ours, through, [site('node:internal/timers')], []]) expect(blamed(stack, own)).toBeUndefined();
  });
});
