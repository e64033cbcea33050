/**
 * `trainyard eval` maps flags to run/evaluate, for new and resumed evaluations, and writes report files. `trainyard diff` compares two
 * evaluations task by task. Both return the exit code.
 */
import { accessSync, constants, existsSync, readFileSync, statSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { basename, dirname, resolve } from 'node:path';
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import { boundary, TrainyardError } from '../core/errors.ts';
import type { Emit, EvaluationReport } from '../core/events.ts';
import { type Comparison, compare, measuredIn, type TaskChange } from '../evaluation/compare.ts';
import { evaluateOnly, resumeEvaluation } from '../evaluation/evaluate.ts';
import { meanRewardIn, solvedIn, type TaskResult } from '../evaluation/results.ts';
import { checkpointIn } from '../run/directory.ts';
import { keptStore } from '../run/run-store.ts';
import type { EvaluationRequest } from '../settings/check-settings.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';
import { isApi, shortPath, usualRun } from '../settings/settings.ts';
import { isDevice, writeWhole } from '../store/files.ts';
import { checkStoreUrl } from '../store/url.ts';
import { exitAfter, guarded } from './guarded.ts';
import { openReport, saying, wayOn } from './output/print.ts';
import { count, nameCell, percent, table } from './output/text.ts';
import { entryGiven } from './verbs.ts';
import { viewBeside } from './view.ts';

/** Exit code if success is below `--min-success`. The evaluation itself worked. */
const NOT_GOOD_ENOUGH = 4;

interface EvalFlags extends Partial<Omit<EvaluationRequest, 'entry'>> {
  readonly json: boolean;
  readonly checkpoint?: string;
  readonly resume?: string;
  readonly retryFailed?: boolean;
  readonly minSuccess?: number;
  readonly junit?: string;
  readonly report?: string;
  readonly tensorboard?: string | true;
  readonly view?: boolean;
}

export async function evalCommand(given: string | undefined, flags: EvalFlags): Promise<number> {
  checkFlags(flags);
  const { json, checkpoint, resume, retryFailed, minSuccess = 0, junit, report: reportFile, ...own } = flags;
  const { tensorboard, view = false, ...rest } = own;
  const settings = checkpoint === undefined ? rest : { ...rest, model: await checkpointIn(checkpoint) };
  // The flows file can serve as the entry.
  const named = given ?? settings.flows;
  const entry = resume === undefined ? entryGiven(named, 'trainyard eval <entry>') : named;
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = settings;
  const title = { verb: 'eval', entry: entry ?? resume ?? '', model, seed, run: null } as const;
  using report = await openReport(json, title, tensorboard);
  using beside = viewBeside(view, settings.store);
  let run: string | null = null;
  let hasBegun = false;
  let name = entry ?? resume ?? '';
  const emit: Emit = (event) => {
    if (event.type === 'eval-start') {
      ({ run, entry: name } = event);
      hasBegun = true;
      beside.open(run);
    }
    if (event.type === 'done' && 'success' in event && !isReached(minSuccess, event)) {
      const message = `success is ${percent(event.success)}, expected at least ${percent(minSuccess)}`;
      report.emit({ type: 'warning', code: 'BELOW_MIN_SUCCESS', message });
    }
    report.emit(event);
  };
  const onLeave = (): void => {
    report[Symbol.dispose]();
    if (run !== null) process.stderr.write(`${wayOn(run, 'eval').join('\n')}\n`);
  };
  const result = await guarded(emit, { steps: 'drains', hasBegun: () => hasBegun, onLeave }, async (interrupts) => {
    const { stop, finish } = interrupts;
    const options = { watchStalls: true, retryFailed, finish };
    // What is measured in part reaches no --min-success.
    const unlessDrained = (thrown: unknown): undefined => {
      const isDrained = thrown instanceof TrainyardError && thrown.code === 'CANCELLED' && exitAfter(interrupts) === 0;
      if (!isDrained || minSuccess > 0) throw thrown;
      onLeave();
    };
    if (resume === undefined) {
      const request = { ...settings, entry: entry ?? '', run: settings.run ?? usualRun(entry ?? '', 'eval-') };
      return await evaluateOnly(request, emit, stop, options).catch(unlessDrained);
    }
    const again = entry === undefined ? settings : { ...settings, entry };
    return await resumeEvaluation({ ...again, run: resume }, emit, stop, options).catch(unlessDrained);
  });
  if (result === undefined) return 0;
  const { tasks, run: _, ...numbers } = result;
  if (reportFile !== undefined) await writeReport(reportFile, jsonReport(name, numbers, tasks));
  if (junit !== undefined) await writeReport(junit, junitReport(name, tasks));
  return isReached(minSuccess, result) ? 0 : NOT_GOOD_ENOUGH;
}

/** The tolerance keeps rounding (0.8 as a mean of thirds and fifths) from deciding. */
export function isReached(least: number, { success }: Pick<EvaluationReport, 'success'>): boolean {
  return success >= least - 1e-9;
}

export function checkpointConflict({
  checkpoint,
  model,
  engine,
}: Pick<EvalFlags, 'checkpoint' | 'model' | 'engine'>): string | false {
  if (checkpoint === undefined) return false;
  if (isApi(engine))
    return `found --checkpoint with --engine ${engine}: a checkpoint is a folder here; give --model a name at the server`;
  return model !== undefined && 'found both --checkpoint and --model: give one of them';
}

/** Reports all conflicts between flags at once. */
function checkFlags(flags: EvalFlags): void {
  const { resume, run, retryFailed, junit, report } = flags;
  const isSameFile = junit !== undefined && report !== undefined && resolve(junit) === resolve(report);
  const problems = [
    resume !== undefined && run !== undefined && 'found both --resume and --run: --resume names the directory already',
    checkpointConflict(flags),
    retryFailed &&
      resume === undefined &&
      '--retry-failed: expected --resume <run> beside it, whose failed rollouts are run again',
    isSameFile && 'found the same file for --junit and --report: give two',
  ].filter((problem) => typeof problem === 'string');
  if (problems.length > 0) throw new TrainyardError('USAGE', problems.join('; '), 'see trainyard eval --help');
  if (junit !== undefined) checkWritable(junit, '--junit', run ?? resume);
  if (report !== undefined) checkWritable(report, '--report', run ?? resume);
}

/** Matches the beginning of the reports below, or an empty file. */
const REPLACEABLE = /^(?:$|<\?xml [^\n]*\n<testsuites name="trainyard eval"|\{\n {2}"name": [^\n]*\n {2}"success": )/;
const OF_THE_RUN = /^(?:run\.json|metrics\.json|events\.jsonl|lock|store\.sqlite)/;

/** Runs before anything is spent. Throws USAGE if the file is not writable or would replace something other than a report. */
export function checkWritable(path: string, flag: string, run?: string): void {
  const found = obstacle(path, run);
  if (found === undefined) return;
  throw new TrainyardError(
    'USAGE',
    `${flag}: expected a file that can be written, found ${found}`,
    `give ${flag} the name of a new file, where files may be written`,
  );
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
  try {
    accessSync(folder, constants.W_OK);
    return undefined;
  } catch {
    return `${folder}, where nothing may be written`;
  }
}

/** Creates missing folders. */
export async function writeReport(path: string, text: string): Promise<void> {
  await boundary('STORE_FAILED', `cannot make the folder of ${path}`, () => mkdir(dirname(path), { recursive: true }));
  await writeWhole(path, text);
}

/** The metrics, and the results per task. Contains no answers. */
export function jsonReport(name: string, report: EvaluationReport, tasks: readonly TaskResult[]): string {
  const byTask = tasks.map((task) => ({
    ...task,
    success: task.rollouts.length === 0 ? null : solvedIn(task.rollouts) / task.rollouts.length,
    meanReward: meanRewardIn(task.rollouts),
  }));
  return `${JSON.stringify({ name, ...report, tasks: byTask }, null, 2)}\n`;
}

/** One test case per task: an error if a rollout broke, since its result is unknown; a failure unless every rollout solved it. */
export function junitReport(name: string, tasks: readonly TaskResult[]): string {
  const cases = tasks.map((task) => ({ xml: testCase(name, task), ending: endingOf(task) }));
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
  const counted = ending === 'error' ? [failed, 'failed'] : [solvedIn(rollouts), 'solved it'];
  const said = `${counted[0]} of ${rollouts.length} rollouts ${counted[1]}`;
  const lines = rollouts.map(({ rolloutId, ending: how, reward, why }) =>
    [rolloutId, how, reward === null ? 'no reward' : `reward ${reward}`, ...(why === undefined ? [] : [why])].join(' · '),
  );
  return `${head}>\n      <${ending} message="${escaped(said)}">${escaped(lines.join('\n'))}</${ending}>\n    </testcase>`;
}

function secondsOf({ rollouts }: TaskResult): number {
  return rollouts.reduce((sum, { seconds }) => sum + seconds, 0);
}

const ENTITIES: Readonly<Record<string, string>> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&apos;' };

/** Escapes text for XML 1.0. Control characters and lone surrogates, which XML cannot represent, become U+FFFD. */
function escaped(text: string): string {
  return text
    .toWellFormed()
    .replaceAll(/[^\t\n\r\u{20}-\u{D7FF}\u{E000}-\u{FFFD}\u{10000}-\u{10FFFF}]/gu, '\uFFFD')
    .replaceAll(/[&<>"']/g, (character) => ENTITIES[character] ?? character);
}

/** Tasks listed per kind of change; `--json` lists all. */
const MOST_CHANGES = 10;

export async function diffCommand(
  a: string,
  b: string,
  { json, store }: { readonly json: boolean; readonly store?: string },
): Promise<number> {
  checkStoreUrl(store);
  // Either may have its rollouts in a file.
  const urlOf = (run: string): string | undefined => (existsSync(run) && keptStore(run).url === undefined ? undefined : store);
  const comparison = compare(await measuredIn(a, urlOf(a)), await measuredIn(b, urlOf(b)));
  saying(json)(diffLines(comparison), { type: 'diff', ...comparison });
  return 0;
}

export function diffLines(comparison: Comparison): readonly string[] {
  const named = (run: string, model: string | null): string => (model === null ? run : `${run}: ${shortPath(model)}`);
  const { a, b, tasks, success, meanReward, better, worse, sameSuccess } = comparison;
  const [low, high] = success.ci.map((end) => signed(100 * end, 1));
  const rows = [
    ['', 'A', 'B', 'difference', '95 % interval'],
    // In percentage points: 71 points more is not 71 % more.
    ['success', percent(success.a), percent(success.b), `${signed(100 * success.delta, 1)} points`, `${low} to ${high} points`],
  ];
  const ofRewards: string[] = [];
  if (meanReward !== null) {
    const { ci, tasks: graded, better: higher, worse: lower, same } = meanReward;
    const interval = ci === null ? 'no spread' : ci.map((end) => signed(end, 3)).join(' to ');
    rows.push(['mean reward', meanReward.a.toFixed(3), meanReward.b.toFixed(3), signed(meanReward.delta, 3), interval]);
    ofRewards.push(`Rewards of ${count(graded, 'task')}: ${higher} higher, ${lower} lower, ${same} the same`);
  }
  const often = `${success.better} solved more often, ${success.worse} less often, ${success.same} as often`;
  return [
    `A is ${printableLine(named(a, comparison.models.a))}`,
    `B is ${printableLine(named(b, comparison.models.b))}`,
    ...warnings(comparison).map((warning) => `${styleText('yellow', 'warning')} ${printableLine(warning)}`),
    '',
    ...table(rows),
    `Success of ${count(tasks, 'task')}: ${often}; p = ${success.p.toPrecision(2)} (${conclusion(success)})`,
    ...ofRewards,
    ...changed('Solved more often', better),
    ...changed('Solved less often', worse),
    ...changed('Solved as often, with another reward', sameSuccess),
  ];
}

function conclusion({ p, delta }: Comparison['success']): string {
  if (delta === 0) return 'no difference';
  if (p >= 0.05) return 'could well be chance';
  return delta > 0 ? 'B is better' : 'A is better';
}

function warnings({ otherDifferences, earlierPolicies, failed, ...left }: Comparison): readonly string[] {
  const list = (what: string, ids: readonly string[]): readonly string[] => {
    const more = ids.length > 5 ? ` and ${ids.length - 5} more` : '';
    return ids.length === 0 ? [] : [`${what}, not compared: ${ids.slice(0, 5).join(', ')}${more}`];
  };
  return [
    ...earlierPolicies,
    ...otherDifferences.map((difference) => `not only the policy differs: ${difference}`),
    ...(failed.a + failed.b === 0 ? [] : [`rollouts that failed count as not solved: ${failed.a} in A, ${failed.b} in B`]),
    ...list('only in A', left.onlyInA),
    ...list('only in B', left.onlyInB),
    ...list('another task under the same id', left.changedTasks),
    ...list('not finished', left.unfinished),
  ];
}

function changed(title: string, changes: readonly TaskChange[]): readonly string[] {
  if (changes.length === 0) return [];
  const rows = changes
    .slice(0, MOST_CHANGES)
    .map(({ id, success, meanReward }) => [
      `  ${nameCell(id)}`,
      `${percent(success.a)} → ${percent(success.b)}`,
      meanReward === null ? 'no reward' : `reward ${meanReward.a.toFixed(3)} → ${meanReward.b.toFixed(3)}`,
    ]);
  const hidden = changes.length - MOST_CHANGES;
  return ['', `${title}:`, ...table(rows), ...(hidden > 0 ? [`  and ${hidden} more`] : [])];
}

function signed(value: number, digits: number): string {
  return `${value >= 0 ? '+' : '−'}${Math.abs(value).toFixed(digits)}`;
}
