import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BROKEN, ended, REJECTED, tasksNamed } from '../../test/fixtures/evaluation.ts';
import { Results, reportOf } from '../evaluation/results.ts';
import { writeWhole } from '../store/files.ts';
import { checkWritable, isReached, jsonReport, junitReport, writeReport } from './eval.ts';

const WAYS = { good: 1, 'bad<&>"\'': 0.25, broken: BROKEN, rejected: REJECTED };
function results(): Results {
  const all = new Results(tasksNamed(...Object.keys(WAYS), 'not run'), 1);
  for (const [id, how] of Object.entries(WAYS)) all.add(ended(id, 1, how));
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
  });

  it('holds no character that XML has not, and no markup but its own, whatever is in names and reasons', () => {
    const everything = Array.from({ length: 0x10000 }, (_, code) => String.fromCharCode(code)).join('');
    for (const text of [everything, ']]><![CDATA[<!-- -- &#0; &nbsp;']) {
      const all = new Results(tasksNamed(text), 1);
      const outcome = { kind: 'failed', code: 'WORKFLOW_FAILED', message: text } as const;
      all.add(ended(text, 1, { outcome, grade: { kind: 'ungraded', why: text } }));
      const written = junitReport(text, all.byTask());
      expect(written).toMatch(/^[\t\n\r\u{20}-\u{D7FF}\u{E000}-\u{FFFD}\u{10000}-\u{10FFFF}]*$/u);
      expect(written.replaceAll(/<[/?]?[a-z]+(?: [a-z]+="[^"<]*")*[/?]?>|&(?:amp|lt|gt|quot|apos);/g, '')).not.toMatch(/[<&]/);
    }
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
      { success: 0, rollouts: [{ ending: 'ungraded', why: 'nothing to grade' }] },
      { id: 'not run', success: null, rollouts: [] },
    ]);
  });
});

describe('a file that is asked for', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'reports-'));
    writeFileSync(join(folder, 'plain.txt'), 'plain');
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  it('is refused before anything runs where it cannot be written', () => {
    expect(() => checkWritable(folder, '--report')).toThrow(/--report: .*found the folder/);
    const message = /--junit: expected a file that can be written, found .*plain\.txt, which is no folder/;
    for (const path of ['plain.txt/x.xml', 'plain.txt/deep/in/x.xml'])
      expect(() => checkWritable(join(folder, path), '--junit')).toThrow(message);
    expect(() => checkWritable(join(folder, 'x.xml'), '--junit')).not.toThrow();
  });

  it('takes the place of an earlier report or of an empty file, and of nothing else: what is there may be the tasks', async () => {
    const [old, other] = [join(folder, 'old'), join(folder, 'other')];
    const tasks = results().byTask();
    const report = jsonReport('shop', reportOf(tasks, { n: 1, temperature: 0 }), tasks);
    for (const text of ['', report, junitReport('shop', tasks)]) {
      await writeReport(old, text);
      expect(() => checkWritable(old, '--report')).not.toThrow();
    }
    for (const text of ['{"prompt":"a"}\n{"prompt":"b"}\n', '{"name":"shop"}', 'export default 1;', '<?xml version="1.0"?>']) {
      await writeReport(other, text);
      for (const flag of ['--report', '--junit']) {
        expect(() => checkWritable(other, flag)).toThrow(/other, which is there already and is no report of an evaluation/);
      }
    }
  });

  it('may be in the directory of the evaluation, which is still to be made, but is none of its own files', () => {
    const run = join(folder, 'run');
    expect(() => checkWritable(join(run, 'junit.xml'), '--junit', run)).not.toThrow();
    for (const own of ['run.json', 'store.sqlite', 'store.sqlite-wal', 'metrics.json', 'events.jsonl', 'lock']) {
      expect(() => checkWritable(join(run, own), '--report', run)).toThrow(/a file of the evaluation itself/);
    }
  });

  it('may be in folders that are still to be made: when it is written, not before', async () => {
    const path = join(folder, 'none/yet/x.xml');
    expect(() => checkWritable(path, '--junit')).not.toThrow();
    expect(existsSync(join(folder, 'none'))).toBe(false);
    await writeReport(path, 'x');
    expect(readFileSync(path, 'utf8')).toBe('x');
    await expect(writeReport(join(folder, 'plain.txt/x.xml'), 'x')).rejects.toMatchObject({ code: 'STORE_FAILED' });
  });

  it('is written through a link and into a device, which stay what they are', async () => {
    symlinkSync(join(folder, 'plain.txt'), join(folder, 'link.txt'));
    await writeWhole(join(folder, 'link.txt'), 'new');
    expect(readFileSync(join(folder, 'plain.txt'), 'utf8')).toBe('new');
    symlinkSync('/dev/null', join(folder, 'nothing'));
    await writeWhole(join(folder, 'nothing'), 'gone');
    expect(statSync(join(folder, 'nothing')).isFile()).toBe(false);
  });

  it('leaves nothing half-written where writing fails', async () => {
    await expect(writeWhole(join(folder, 'nowhere', 'x.xml'), 'x')).rejects.toMatchObject({ code: 'STORE_FAILED' });
    expect(readdirSync(folder).filter((name) => name.includes('unfinished'))).toEqual([]);
  });
});

it('success reaches what is asked for where only rounding is in between', () => {
  // Two thirds, added up ten times and divided, is a little less.
  const success = Array.from({ length: 10 }, () => 2 / 3).reduce((sum, share) => sum + share, 0) / 10;
  expect(success).not.toBe(2 / 3);
  expect(isReached(2 / 3, { success })).toBe(true);
  expect(isReached(0.66667, { success })).toBe(false);
  expect(isReached(0, { success: 0 })).toBe(true);
});
