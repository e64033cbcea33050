/** Files about an evaluation, for other programs: metrics.json, a JSON report, JUnit XML. Written whole or not at all. */
import { accessSync, constants, existsSync, readFileSync, statSync } from 'node:fs';
import { mkdir, open, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { basename, dirname, resolve } from 'node:path';
import { boundary, TrainyardError } from '../core/errors.ts';
import type { EvaluationReport } from '../core/events.ts';
import { meanRewardIn, solvedIn } from './evaluation-report.ts';
import type { TaskResult } from './evaluation-results.ts';

/** How the reports below begin, or an empty file. */
const REPLACEABLE = /^(?:$|<\?xml [^\n]*\n<testsuites name="trainyard eval"|\{\n {2}"name": [^\n]*\n {2}"success": )/;
/** Files that an evaluation itself has in its directory. */
const OF_THE_RUN = /^(?:run\.json|metrics\.json|events\.jsonl|lock|store\.sqlite)/;

/** Before anything is spent: throws USAGE where the file could not be written in the end, or would replace another than a report. */
export function checkWritable(path: string, flag: string, run?: string): void {
  const found = obstacle(path, run);
  if (found === undefined) return;
  throw new TrainyardError('USAGE', `${flag}: expected a file that can be written, found ${found}`, {
    hint: `give ${flag} the name of a new file, where files may be written`,
  });
}

function obstacle(path: string, run: string | undefined): string | undefined {
  const isOfTheRun = run !== undefined && resolve(dirname(path)) === resolve(run) && OF_THE_RUN.test(basename(path));
  if (isOfTheRun) return `${path}, a file of the evaluation itself`;
  let folder = resolve(dirname(path));
  while (!existsSync(folder) && folder !== dirname(folder)) folder = dirname(folder);
  if (!statSync(folder).isDirectory()) return `${folder}, which is no folder`;
  if (existsSync(path) && statSync(path).isDirectory()) return `the folder ${path}`;
  if (isDevice(path)) return undefined;
  if (existsSync(path) && !REPLACEABLE.test(readFileSync(path, 'utf8')))
    return `${path}, which is there already and is no report of an evaluation`;
  return isWritable(folder) ? undefined : `${folder}, where nothing may be written`;
}

/** A pipe, a terminal, /dev/null: there is nothing to replace. */
function isDevice(path: string): boolean {
  return existsSync(path) && !statSync(path).isFile();
}

function isWritable(folder: string): boolean {
  try {
    accessSync(folder, constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

export async function writeWhole(path: string, text: string): Promise<void> {
  await boundary('STORE_FAILED', `cannot write ${path}`, async () => {
    if (isDevice(path)) return await writeFile(path, text);
    // A link stays a link.
    const target = existsSync(path) ? await realpath(path) : path;
    const unfinished = `${target}.unfinished`;
    try {
      await using file = await open(unfinished, 'w');
      await file.writeFile(text);
      await file.sync();
      await rename(unfinished, target);
    } catch (thrown) {
      await rm(unfinished, { force: true });
      throw thrown;
    }
  });
}

/** Makes the folders that it lacks. */
export async function writeReport(path: string, text: string): Promise<void> {
  await boundary(
    'STORE_FAILED',
    `cannot make the folder of ${path}`,
    async () => await mkdir(dirname(path), { recursive: true }),
  );
  await writeWhole(path, text);
}

/** The numbers, and what they are made of task by task. Holds no answers. */
export function jsonReport(name: string, report: EvaluationReport, tasks: readonly TaskResult[]): string {
  const byTask = tasks.map((task) => ({
    ...task,
    success: task.rollouts.length === 0 ? null : solvedIn(task.rollouts) / task.rollouts.length,
    meanReward: meanRewardIn(task.rollouts),
  }));
  return `${JSON.stringify({ name, ...report, tasks: byTask }, null, 2)}\n`;
}

/**
 * A test case for each task. One rollout that broke makes it an error: what it would have been is not known. Otherwise it is a failure if
 * not every rollout solved it; the text says how many did.
 */
export function junitReport(name: string, tasks: readonly TaskResult[]): string {
  const cases = tasks.map((task) => ({ task, xml: testCase(name, task), ending: endingOf(task) }));
  const count = (ending: string): number => cases.filter((each) => each.ending === ending).length;
  const seconds = tasks.reduce((sum, task) => sum + secondsOf(task), 0).toFixed(3);
  const counts = `tests="${cases.length}" failures="${count('failure')}" errors="${count('error')}" skipped="${count('skipped')}" time="${seconds}"`;
  return [
    '<?xml version="1.0" encoding="UTF-8"?>',
    `<testsuites name="trainyard eval" ${counts}>`,
    `  <testsuite name="${escaped(name)}" ${counts}>`,
    ...cases.map(({ xml }) => xml),
    '  </testsuite>',
    '</testsuites>',
    '',
  ].join('\n');
}

function endingOf({ rollouts }: TaskResult): 'passed' | 'failure' | 'error' | 'skipped' {
  if (rollouts.length === 0) return 'skipped';
  if (rollouts.some(({ ending }) => ending === 'failed')) return 'error';
  return solvedIn(rollouts) === rollouts.length ? 'passed' : 'failure';
}

function testCase(name: string, task: TaskResult): string {
  const head = `    <testcase name="${escaped(task.id)}" classname="${escaped(name)}" time="${secondsOf(task).toFixed(3)}"`;
  const ending = endingOf(task);
  if (ending === 'passed') return `${head}/>`;
  if (ending === 'skipped') return `${head}><skipped message="not run"/></testcase>`;
  const { rollouts } = task;
  const failed = rollouts.filter((rollout) => rollout.ending === 'failed').length;
  const said =
    ending === 'error'
      ? `${failed} of ${rollouts.length} rollouts failed`
      : `${solvedIn(rollouts)} of ${rollouts.length} rollouts solved it`;
  const lines = rollouts.map(({ rolloutId, ending: how, reward, why }) =>
    [rolloutId, how, reward === null ? 'no reward' : `reward ${reward}`, ...(why === undefined ? [] : [why])].join(' · '),
  );
  return `${head}>\n      <${ending} message="${escaped(said)}">${escaped(lines.join('\n'))}</${ending}>\n    </testcase>`;
}

function secondsOf({ rollouts }: TaskResult): number {
  return rollouts.reduce((sum, { seconds }) => sum + seconds, 0);
}

const ENTITIES: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&apos;' };

/** Text as XML 1.0 may hold it: what it has no way to write, control characters and halves of surrogate pairs, becomes U+FFFD. */
function escaped(text: string): string {
  return text
    .toWellFormed()
    .replaceAll(/[^\t\n\r\u{20}-\u{D7FF}\u{E000}-\u{FFFD}\u{10000}-\u{10FFFF}]/gu, '\uFFFD')
    .replaceAll(/[&<>"']/g, (character) => ENTITIES[character] ?? character);
}
