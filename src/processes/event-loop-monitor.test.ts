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

async function found(ways: readonly string[], tries = 3, own = ''): Promise<readonly string[]> {
  const env = { ...process.env, TEST_FOLDER: folder };
  const { stdout } = await promisify(execFile)(process.execPath, [program, own, String(tries), ...ways], { env });
  return JSON.parse(stdout) as string[];
}

const lineOf = (way: string): number =>
  readFileSync(program, 'utf8')
    .split('\n')
    .findIndex((line) => line.endsWith(`// ${way}`)) + 1;

describe.concurrent('what blocks the event loop', () => {
  const ways = ['busyLoop', 'runShell', 'runProgram', 'readSlowFile', 'waitForAtomics'];

  it('is named by file, line and function, once for each place', async () => {
    const warnings = await found([...ways, 'busyLoop']);
    expect(warnings).toEqual(
      ways.map((way) =>
        expect.stringMatching(
          new RegExp(`^test/fixtures/processes/stalls\\.ts:${lineOf(way)} ${way} blocked all rollouts for \\d+\\.\\d s; use`),
        ),
      ),
    );
  });

  it('is told again with a count', async () => {
    const warnings = await found(['blockBriefly', 'blockBriefly'], 25);
    expect(warnings).toHaveLength(2);
    expect(warnings[1]).toMatch(/blocked all rollouts 10 times, \d+\.\d s in all/);
  });

  it('is nobody’s fault where the code is our own, or nothing blocks', async () => {
    expect(await found(['busyLoop'], 2, new URL('../../', import.meta.url).href)).toEqual([]);
    expect(await found(['doNothing'], 2)).toEqual([]);
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
