/**
 * Plain text output for pipes, logs and scrollback: a run's events. With `--json`, one JSON object per line. print-rollout.ts has rollouts.
 */
import { basename } from 'node:path';
import { styleText } from 'node:util';
import { outsideRollout } from '../../core/context.ts';
import { printableLine } from '../../core/describe.ts';
import type {
  CallReport,
  Emit,
  EvalDone,
  Planned,
  RunEnding,
  RunEvent,
  TagReport,
  TrainDone,
  Unusual,
} from '../../core/events.ts';
import { lineOf } from '../../core/events.ts';
import type { ModelPlan } from '../../core/policy.ts';
import { hubNameOf } from '../../engines/model-path.ts';
import { resumeCommand, shellWord } from '../../settings/settings.ts';
import type { Title } from '../screen/state.ts';
import {
  agreementText,
  amount,
  asCalled,
  count,
  duration,
  figure,
  measures,
  nameCell,
  percent,
  STOPPED,
  table,
  took,
  wantsScreen,
} from './text.ts';

type Event<Type extends RunEvent['type']> = RunEvent & { readonly type: Type };

const BAR = 24;
/** Parts and metrics shown; the rest is counted. */
const MOST_MEASURES = 8;
/** Tags shown; metrics.json has all. */
const MOST_TAGS = 20;
/** Milliseconds without output after which progress gets a line. */
const SILENCE = 10_000;

/** What a command says: lines for people, or with `--json` one object. Never taken for what a workflow prints. */
export type Say = (lines: readonly string[], value: object) => void;
export const saying =
  (json: boolean): Say =>
  (lines, value) =>
    outsideRollout(() => console.log(json ? JSON.stringify(value) : lines.join('\n')));

export type Report = Disposable & { readonly emit: Emit };

/** Live view on a terminal, otherwise plain lines or JSON. `tensorboard`: where to write its files too. */
export async function openReport(json: boolean, title: Title, tensorboard?: string | true): Promise<Report> {
  if (tensorboard !== undefined) {
    const shown = await openReport(json, title);
    const emit = (await import('../../export/tensorboard.ts')).withTensorBoard(shown.emit, tensorboard);
    return { emit, [Symbol.dispose]: () => shown[Symbol.dispose]() };
  }
  if (!json && wantsScreen(process.stdout.isTTY === true, process.env)) {
    return (await import('../screen/screen.ts')).attachScreen(title);
  }
  return { emit: printing(json), [Symbol.dispose]: () => {} };
}

/** Plain lines or JSON. */
export function printing(json: boolean): Emit {
  return (json ? jsonLines : textLines)(process.stdout);
}

/** Every event except `progress`, which is only for display. */
export function jsonLines(out: NodeJS.WritableStream): Emit {
  return (event) => {
    if (event.type !== 'progress') out.write(lineOf(event));
  };
}

/** Shows progress only after a period without output, so that a log is neither silent nor flooded. */
export function textLines(out: NodeJS.WritableStream, now: () => number = () => performance.now()): Emit {
  let entry = '';
  let last = now();
  return (event) => {
    if (event.type === 'progress' && now() - last < SILENCE) return;
    if (event.type === 'run-start') entry = event.entry;
    const lines = event.type === 'progress' ? progressLines(event) : describe(event, entry);
    for (const line of lines) out.write(`${line}\n`);
    if (lines.length > 0) last = now();
  };
}

/** `entry`: that of the run's first event. Returns no lines for progress, nor for errors, which go to stderr. */
export function describe(event: RunEvent, entry = ''): readonly string[] {
  switch (event.type) {
    case 'run-start':
      return runStart(event);
    case 'eval-start':
      return evaluationStart(event);
    case 'eval-end':
      return [evaluation(event)];
    case 'step-end':
      return [step(event), ...belowStep(event)];
    case 'transcript': {
      const head = `  ${styleText('dim', `task ${printableLine(event.taskId)}, reward ${event.reward ?? 'none'}`)}`;
      return ['', head, ...event.lines.map((line) => `    ${printableLine(line)}`)];
    }
    case 'warning': {
      const hint = event.hint === undefined ? '' : ` (${printableLine(event.hint)})`;
      return [`${styleText('yellow', 'warning')} ${printableLine(`${event.code}: ${event.message}`)}${hint}`];
    }
    case 'done':
      return 'ending' in event ? trainingSummary(event, entry) : evaluationSummary(event);
    case 'sft-start':
      return sftStart(event);
    case 'sft-step':
      return event.validationLoss === undefined ? [] : [sftStep(event)];
    case 'sft-end':
      return sftEnd(event);
    case 'progress':
    case 'error':
      return [];
  }
}

function sftStart(event: Event<'sft-start'>): readonly string[] {
  const { from, conversations, tasks, leftOut, tokens, validationTokens, epochs } = event;
  const taught = `${count(conversations, 'conversation')} of ${count(tasks, 'task')} from ${printableLine(from)}`;
  const measured = validationTokens > 0 ? `; ${validationTokens} tokens of other tasks to measure` : '';
  const sizes = `${tokens} tokens, at most ${count(epochs, 'time')}${measured}`;
  const left = Object.entries(leftOut).map(([why, n]) => `  left out: ${n} ${printableLine(why)}`);
  return [`Teaching ${taught}: ${sizes}`, ...left, ...places(event)];
}

function sftStep({ step, steps, loss, validationLoss = Number.NaN, seconds }: Event<'sft-step'>): string {
  const losses = `loss ${loss.toFixed(3)}, on tasks not taught ${validationLoss.toFixed(3)}`;
  return `taught ${step} of ${steps} steps: ${losses} (last step ${took(seconds)})`;
}

const SFT_ENDINGS = {
  epochs: 'Taught',
  patience: 'Taught, until it no longer helped,',
  interrupted: 'Interrupted, taught',
} as const;

function sftEnd({ steps, checkpoint, validationLoss, ending, seconds }: Event<'sft-end'>): readonly string[] {
  const { before = Number.NaN, after = Number.NaN } = validationLoss ?? {};
  const change = validationLoss === undefined ? '' : `: loss on tasks not taught ${before.toFixed(3)} → ${after.toFixed(3)}`;
  const where = checkpoint === null || ending === 'interrupted' ? [] : [`The taught model is in ${printableLine(checkpoint)}`];
  return [`${SFT_ENDINGS[ending]} for ${count(steps, 'step')} in ${took(seconds)}${change}`, ...where];
}

function progressLines({ phase, done, of, failed = 0 }: Event<'progress'>): readonly string[] {
  if (of === 0) return [];
  if (phase === 'teaching') return [`Teaching: ${done} of ${of} steps`];
  return [`${phase === 'evaluating' ? 'Evaluating' : 'Rolling out'}: ${done} of ${of} rollouts${some(', ', failed, 'failed')}`];
}

function runStart(event: Event<'run-start'>): readonly string[] {
  const { entry, steps, tasks, heldOut, seed, resumedAt } = event;
  const what = styleText('bold', printableLine(entry));
  const doing =
    resumedAt === undefined
      ? `Training ${what} for ${count(steps, 'step')}`
      : `Going on with ${what} after step ${resumedAt} of ${steps}`;
  const source = event.from === undefined ? `${tasks} tasks` : `from the rollouts of ${printableLine(event.from)}`;
  const unmeasured = 'Nothing is held out, so nothing will tell whether it got better: give --held-out or --split 0.1';
  return [
    `${doing}: ${source}, ${heldOut} held out, seed ${seed}`,
    ...(heldOut > 0 ? [] : [styleText('yellow', unmeasured)]),
    ...places(event),
  ];
}

function evaluationStart(event: Event<'eval-start'>): readonly string[] {
  const { entry, tasks, perTask, temperature, seed, resumedAt } = event;
  const what = styleText('bold', printableLine(entry));
  const doing =
    resumedAt === undefined
      ? `Evaluating ${what} on ${count(tasks, 'task')}${perTask === 1 ? '' : ` × ${perTask}`}`
      : `Going on with ${what}, ${resumedAt} of ${tasks * perTask} rollouts done`;
  const unless = event.agentTemperature ? ' unless the agent asks for another' : '';
  return [`${doing}, temperature ${temperature}${unless}, seed ${seed}`, ...places(event)];
}

/** `type`: of the event that says it. */
export function plannedText(type: RunEvent['type'], { rollouts, calls, sampledTokens, cost }: Planned): string {
  const [upTo, unless] = type === 'run-start' ? ['up to ', ', more only if whole steps find no signal'] : ['', ''];
  const costs = cost === undefined ? '' : `; that costs at most ${figure(cost, 2)}, prompts not included`;
  return `Planned ${upTo}${amount(rollouts)} rollouts${unless}: at most ${amount(calls)} model calls and ${amount(sampledTokens)} tokens${costs}`;
}

function places(event: Event<'run-start'> | Event<'eval-start'> | Event<'sft-start'>): readonly string[] {
  const { model, server, run, plan } = event;
  return [
    ...(plan === undefined ? [] : [planText(model, plan)]),
    ...(server === undefined ? [] : [`Policy ${printableLine(model)}`]),
    ...(run === null ? [] : [`Run directory ${printableLine(run)}`]),
    ...('planned' in event && event.planned ? [plannedText(event.type, event.planned)] : []),
  ];
}

/** Such as `SmolLM2: 134.5 M parameters, 4.9 M trained (LoRA rank 16), context 1,024; memory up to 1.9 GB: weights 0.54 GB`. */
export function planText(model: string, { parameters, trained, loraRank, context, bytes, text }: ModelPlan): string {
  const millions = (n: number): string => `${(n / 1e6).toFixed(1)} M`;
  const how = loraRank === undefined ? '' : ` (LoRA rank ${loraRank})`;
  const trains = trained === 0 ? '' : `, ${millions(trained)} trained${how}`;
  const memory = `memory up to ${(bytes / 1e9).toFixed(2)} GB${text === '' ? '' : `: ${text}`}`;
  const name = printableLine(hubNameOf(model) ?? basename(model));
  return `${name}: ${millions(parameters)} parameters${trains}, context ${context.toLocaleString('en')}; ${memory}`;
}

function evaluation({ when, step, score, temperature = 0, seconds }: Event<'eval-end'>): string {
  const names = { only: '', before: ' before training', during: ` after step ${step}`, after: ' after training' };
  const success = score.meanReward === null ? 'unknown (none graded)' : styleText('bold', percent(score.success));
  const failed = some(', ', score.failed, 'failed');
  const ungraded = some(', ', score.ungraded, 'not graded');
  return `${when === 'only' ? 'Success' : 'Held-out success'}${names[when]}: ${success} of ${score.n} tasks${failed}${ungraded}, at temperature ${temperature} (${took(seconds)})`;
}

/** Such as `  3 stale`; empty if n is 0. */
function some(gap: string, n: number, what: string): string {
  return n > 0 ? `${gap}${n} ${what}` : '';
}

/** What a step trained on all the same is worth a word. */
const STALE = { drop: '', weigh: ' (weighed)', keep: ' (kept)' } as const;

function step(event: Event<'step-end'>): string {
  const { failedRollouts, failedGrades, groups, groupsWithoutSignal } = event;
  const left =
    some('  ', event.staleGroups, `stale${STALE[event.staleRule ?? 'drop']}`) + some('  ', event.excludedRollouts, 'excluded');
  const failures = failedRollouts + failedGrades > 0 ? `  ${failedRollouts} rollouts and ${failedGrades} gradings failed` : '';
  const seconds = took(event.rolloutSeconds + event.trainSeconds + event.saveSeconds);
  return (
    `step ${String(event.step).padStart(3)}  reward ${event.reward.toFixed(2)} ${bar(event.reward)}` +
    `  ${groups - groupsWithoutSignal}/${groups} groups with signal${left}${some('  ', event.ungraded, 'not graded')}` +
    `  ${event.trainedTokens} tokens  ${seconds}${failures}`
  );
}

/** Empty for rewards outside 0 … 1, whose range is not known. */
function bar(reward: number): string {
  if (!(reward >= 0 && reward <= 1)) return ' '.repeat(BAR);
  const filled = Math.round(reward * BAR);
  return '█'.repeat(filled) + '░'.repeat(BAR - filled);
}

/** The parts of the reward, and the log-probability agreement unless it is exact, as with the embedded policy. */
function belowStep(event: Event<'step-end'>): readonly string[] {
  const { parts = {}, metrics = {}, ratio, largestDifference } = event;
  const made = measures([...Object.entries(parts), ...Object.entries(metrics)], MOST_MEASURES, 2);
  const isExact = largestDifference === 0 && ratio === 1;
  const lines = [...(made === '' ? [] : [made]), ...(isExact || ratio === undefined ? [] : [agreementText(event)])];
  return lines.map((line) => `          ${styleText('dim', line)}`);
}

const CAN_GO_ON: ReadonlySet<RunEnding> = new Set(['interrupted', 'max-time', 'max-tokens']);

function trainingSummary(event: TrainDone, entry: string): readonly string[] {
  const { before, after, steps, seconds, run, ending, store = `${run}/store.sqlite` } = event;
  const change =
    before !== null && after !== null ? `: held-out success ${percent(before.success)} → ${percent(after.success)}` : '';
  const whole = seconds < 100 ? `${seconds.toFixed(0)} s` : duration(seconds);
  const isSolved = steps === 0 && ending === 'solved';
  const ended = isSolved ? 'Solved already, after' : learned(event) ? 'Done in' : 'Ended without improvement after';
  const head = ending === 'interrupted' ? 'Interrupted after' : ended;
  return [
    '',
    styleText('bold', `${head} ${whole}, ${count(steps, 'step')}${change}`),
    ...(STOPPED[ending] === null ? [] : [`Stopped early: ${isSolved ? SOLVED_ALREADY : STOPPED[ending]}`]),
    ...models(event, entry),
    `Every rollout is in ${store}, every event in ${run}/events.jsonl`,
    `Prove it with: ${asCalled(`trainyard verify ${shellWord(run)}`)}`,
    ...(CAN_GO_ON.has(ending) ? wayOn(run) : []),
  ];
}

const SOLVED_ALREADY = 'every rollout succeeded, so there is nothing to learn from these tasks';

/** Whether there was a step, and success or mean reward rose where they were measured. */
function learned({ before, after, steps }: TrainDone): boolean {
  if (before === null || after === null || before.success === 1) return steps > 0;
  return after.success > before.success || (after.meanReward ?? 0) > (before.meanReward ?? 0);
}

function models({ best, after, checkpoint: last, server, ...unusual }: TrainDone, entry: string): readonly string[] {
  const again = (model: string): readonly string[] => [
    'Measure it again with:',
    `  ${asCalled(measureCommand(entry, model, unusual))}`,
  ];
  const at = server === undefined ? 'is in' : `is at ${printableLine(server)}, by the name in`;
  if (best === null || best.checkpoint === last) {
    return last === null ? [] : [`The trained model ${at} ${last}`, ...again(last)];
  }
  return [
    `The best model on the way, ${percent(best.success)} after step ${best.step}, ${after === null ? '' : 'better than the last on the same tasks, '}${at} ${best.checkpoint}`,
    ...again(best.checkpoint),
    ...(last === null ? [] : [`The last one ${at} ${last}`]),
  ];
}

/** `unusual`: non-default settings that an evaluation depends on. */
function measureCommand(entry: string, model: string, { flow, flows, heldOut, turns, trainable }: Unusual): string {
  const flags = { model, flow, flows, 'held-out': heldOut, turns, trainable: trainable?.join(',') };
  const given = Object.entries(flags).flatMap(([name, value]) =>
    value === undefined ? [] : [`--${name} ${shellWord(String(value))}`],
  );
  // Without another entry, the flows file is the entry.
  return ['trainyard eval', ...(entry === flows ? [] : [shellWord(entry)]), ...given].join(' ');
}

export function wayOn(run: string, verb: 'train' | 'eval' = 'train'): readonly string[] {
  return ['Go on with:', `  ${styleText('bold', asCalled(resumeCommand(run, verb)))}`];
}

export function evaluationSummary(event: EvalDone): readonly string[] {
  const { passAtK, passHatK, perTask, byTag, parts = {}, metrics = {}, failed } = event;
  const run = event.run && printableLine(event.run);
  const tags = Object.entries(byTag).map(([tag, report]) => rowOf(nameCell(tag), report));
  const titles = ['', 'success', '95 % interval', 'mean reward', 'tasks', 'failed', 'ungraded'];
  const rows = [titles, rowOf('all', event), ...tags.slice(0, MOST_TAGS)];
  const hidden = tags.length - MOST_TAGS;
  const named = Object.entries({ parts, metrics }).flatMap(([title, means]) => {
    const shown = measures(Object.entries(means), MOST_MEASURES, 3, '   ');
    return shown === '' ? [] : [`${title}  ${shown}`];
  });
  const kept = `Every rollout is in ${event.store ?? `${run}/store.sqlite`}, the numbers are in ${run}/metrics.json`;
  const again = ['Run again what failed:', `  ${asCalled(`trainyard eval --resume ${run} --retry-failed`)}`];
  return [
    '',
    ...table(rows),
    ...(hidden > 0 ? [`${count(hidden, 'more tag')}: see metrics.json`] : []),
    ...(perTask === 1 ? [] : [`pass@k  ${chances(passAtK)}`, `pass^k  ${chances(passHatK)}`]),
    ...named,
    ...(event.calls === undefined ? [] : [callsLine(event.calls)]),
    ...(run === null ? [] : [kept, ...(failed === 0 ? [] : again)]),
  ];
}

function callsLine({ n, medianSeconds, p95Seconds, promptTokens, completionTokens, cost }: CallReport): string {
  const times = `median ${medianSeconds.toFixed(2)} s, 95 % within ${p95Seconds.toFixed(2)} s`;
  return `${count(n, 'model call')}: ${times}; ${promptTokens} prompt and ${completionTokens} completion tokens${cost === undefined ? '' : `, cost ${figure(cost, 2)}`}`;
}

function rowOf(name: string, { success, ci, meanReward, n, failed, ungraded }: TagReport): readonly string[] {
  const [low, high] = ci.map((end) => (100 * end).toFixed(1));
  const [share, reward] = meanReward === null ? ['unknown', 'none'] : [percent(success), meanReward.toFixed(3)];
  return [name, share, `${low} – ${high} %`, reward, `${n}`, `${failed}`, `${ungraded}`];
}

function chances(byK: Readonly<Record<string, number>>): string {
  const said = Object.entries(byK).map(([k, chance]) => `${k}: ${percent(chance)}`);
  return said.join('   ');
}
