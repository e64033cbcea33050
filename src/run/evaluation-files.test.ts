import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { BROKEN, ended, REJECTED, tasksNamed } from '../../test/fixtures/evaluation.ts';
import { checkWritable, jsonReport, junitReport } from './evaluation-files.ts';
import { reportOf } from './evaluation-report.ts';
import { Results } from './evaluation-results.ts';

function results(): Results {
  const all = new Results(tasksNamed('good', 'bad<&>"\'', 'broken', 'rejected', 'not run'), 1);
  all.add(ended('good', 1, 1));
  all.add(ended('bad<&>"\'', 1, 0.25));
  all.add(ended('broken', 1, BROKEN));
  all.add(ended('rejected', 1, REJECTED));
  return all;
}

describe('the JUnit report', () => {
  const xml = junitReport('agents/<my> agent.ts', results().byTask());

  it('has a test case for each task: failed where it was not solved, an error where it broke, skipped where it was not run', () => {
    expect(xml).toContain('<testsuites name="trainyard eval" tests="5" failures="2" errors="1" skipped="1" time="10.000">');
    expect(xml).toContain('<testcase name="good" classname="agents/&lt;my&gt; agent.ts" time="2.500"/>');
    expect(xml).toContain('<failure message="0 of 1 rollouts solved it">');
    expect(xml).toContain('<error message="1 of 1 rollouts failed">');
    expect(xml).toContain('<skipped message="not run"/>');
  });

  it('escapes what would be XML, and replaces what XML cannot hold', () => {
    expect(xml).toContain('name="bad&lt;&amp;&gt;&quot;&apos;"');
    expect(xml).toContain('WORKFLOW_FAILED: it &lt;broke&gt; &amp; &quot;\uFFFD&quot; ended');
    const odd = new Results(tasksNamed('\uD800\u0000\u001b[31m\uFFFE😀'), 1);
    odd.add(ended('\uD800\u0000\u001b[31m\uFFFE😀', 1, 1));
    expect(junitReport('x', odd.byTask())).toContain('name="\uFFFD\uFFFD\uFFFD[31m\uFFFD😀"');
  });
});

describe('the JSON report', () => {
  it('has the same numbers as the evaluation, and every task and rollout', () => {
    const tasks = results().byTask();
    const numbers = reportOf(tasks, { n: 1, temperature: 0 });
    const report = JSON.parse(jsonReport('agent.ts', numbers, tasks));
    expect(report).toMatchObject({ name: 'agent.ts', ...numbers });
    expect(report.tasks).toMatchObject([
      { id: 'good', row: 10, success: 1, meanReward: 1, rollouts: [{ ending: 'solved' }] },
      { success: 0, meanReward: 0.25 },
      { success: 0, meanReward: null, rollouts: [{ ending: 'failed', why: expect.stringContaining('WORKFLOW_FAILED') }] },
      { success: 0, rollouts: [{ ending: 'skipped', why: 'nothing to grade' }] },
      { id: 'not run', success: null, rollouts: [] },
    ]);
  });
});

describe('a file that is asked for', () => {
  it('is refused before anything runs where it cannot be written', () => {
    const folder = mkdtempSync(join(tmpdir(), 'reports-'));
    try {
      expect(() => checkWritable(join(folder, 'none/x.xml'), '--junit')).toThrow(
        /--junit: expected a file that can be written, found no folder/,
      );
      expect(() => checkWritable(folder, '--report')).toThrow(/--report: .*found the folder/);
      expect(() => checkWritable(join(folder, 'x.xml'), '--junit')).not.toThrow();
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
