/** The loop on one page: it runs, on public pieces only, and stays a page. */
import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { ROOT } from '../cli/command.ts';

const path = join(ROOT, 'examples/loop.ts');
const text = readFileSync(path, 'utf8');

describe('examples/loop.ts', () => {
  it('tries, learns and evaluates', async () => {
    const { stdout, stderr } = await promisify(execFile)(process.execPath, ['--conditions=trainyard-source', path, '2']);
    expect(stderr).toBe('');
    const [before, first, second, after, ...rest] = stdout.trimEnd().split('\n');
    expect(before).toMatch(/^held-out success before: \d+\.\d %$/);
    expect(first).toMatch(/^step 1: reward 0\.\d\d, learned from \d*[1-9]\d* of 64 rollouts$/);
    expect(second).toMatch(/^step 2: reward 0\.\d\d, learned from \d*[1-9]\d* of 64 rollouts$/);
    expect(after).toMatch(/^held-out success after: \d+\.\d %$/);
    expect(rest).toEqual([]);
  });

  it('imports nothing but the package, the agent and Node', () => {
    const imported = [...text.matchAll(/from '([^']+)';/g)].map(([, from]) => from);
    expect(imported).toEqual(['node:url', 'trainyard', 'trainyard/loop', './triage/agent.ts']);
  });

  it('fits on a page of 200 lines', () => {
    expect(text.split('\n').length).toBeLessThanOrEqual(200);
  });
});
