/** What a run's events look like as plain lines, for pipes, logs and the scrollback. */
import { styleText } from 'node:util';
import type { RunEnding, RunEvent, TrainDone } from '../core/events.ts';
import { measureCommand, resumeCommand, shellWord } from '../run/command-line.ts';
import { evaluationStart, evaluationSummary } from './evaluation-text.ts';
import { agreementText, asCalled, count, duration, figure, percent, STOPPED, took } from './phrases.ts';
import { printable } from './screen/width.ts';

type Event<Type extends RunEvent['type']> = RunEvent & { readonly type: Type };

/** Cells of the bar that shows a step's reward. */
const BAR = 24;
/** Parts and metrics that a step shows; the others are counted. */
const MOST_MEASURES = 8;

/** `entry` is the one of the run's first event. Nothing for progress, and for errors: they go to stderr. */
export function describe(event: RunEvent, entry: string): readonly string[] {
  switch (event.type) {
    case 'run-start':
      return runStart(event);
    case 'eval-end':
      return [evaluation(event)];
    case 'step-end':
      return [step(event), ...measures(event), ...agreement(event)];
    case 'transcript':
      return [
        '',
        `  ${styleText('dim', `task ${printable(event.taskId)}, reward ${event.reward ?? 'none'}`)}`,
        ...event.lines.map((line) => `    ${printable(line)}`),
      ];
    case 'warning': {
      const hint = event.hint === undefined ? '' : ` (${printable(event.hint)})`;
      return [`${styleText('yellow', 'warning')} ${event.code}: ${printable(event.message)}${hint}`];
    }
    case 'eval-start':
      return evaluationStart(event);
    case 'done':
      return 'ending' in event ? summary(event, entry) : evaluationSummary(event);
    case 'progress':
    case 'error':
      return [];
  }
}

/** For whoever reads a log and wonders whether anything goes on. */
export function progressLines({ phase, done, of, failed = 0 }: Event<'progress'>): readonly string[] {
  if (of === 0) return [];
  const broken = failed > 0 ? `, ${failed} failed` : '';
  return [`${phase === 'evaluating' ? 'Evaluating' : 'Rolling out'}: ${done} of ${of} rollouts${broken}`];
}

function runStart({ entry, steps, tasks, heldOut, seed, run, resumedAt, model, server }: Event<'run-start'>): readonly string[] {
  const what = `${styleText('bold', entry)}`;
  const doing =
    resumedAt === undefined
      ? `Training ${what} for ${count(steps, 'step')}`
      : `Going on with ${what} after step ${resumedAt} of ${steps}`;
  const policy = server === undefined ? [] : [`Policy ${printable(model)}`];
  return [`${doing}: ${tasks} tasks, ${heldOut} held out, seed ${seed}`, ...policy, `Run directory ${run}`];
}

function evaluation({ when, step, score, temperature = 0, seconds }: Event<'eval-end'>): string {
  const failed = score.failed > 0 ? `, ${score.failed} failed` : '';
  const ungraded = score.ungraded > 0 ? `, ${score.ungraded} not graded` : '';
  const names = {
    only: 'Held-out success',
    before: 'Held-out success before training',
    during: `Held-out success after step ${step}`,
    after: 'Held-out success after training',
  };
  return `${names[when]}: ${styleText('bold', percent(score.success))} of ${score.n} tasks${failed}${ungraded}, at temperature ${temperature} (${took(seconds)})`;
}

function step(event: Event<'step-end'>): string {
  const filled = Math.round(Math.max(0, Math.min(1, event.reward || 0)) * BAR);
  const { failedRollouts, failedGrades, ungraded, excludedRollouts, staleGroups } = event;
  const stale = staleGroups > 0 ? `  ${staleGroups} stale` : '';
  const failures = failedRollouts + failedGrades > 0 ? `  ${failedRollouts} rollouts and ${failedGrades} gradings failed` : '';
  const nothing = ungraded > 0 ? `  ${ungraded} not graded` : '';
  const excluded = excludedRollouts > 0 ? `  ${excludedRollouts} excluded` : '';
  const seconds = took(event.rolloutSeconds + event.trainSeconds + event.saveSeconds);
  return (
    `step ${String(event.step).padStart(3)}  reward ${event.reward.toFixed(2)} ${'█'.repeat(filled)}${'░'.repeat(BAR - filled)}` +
    `  ${event.groups - event.groupsWithoutSignal}/${event.groups} groups with signal${stale}${excluded}${nothing}  ${event.trainedTokens} tokens  ${seconds}${failures}`
  );
}

/** What the reward was made of, by name, under it. */
function measures({ parts = {}, metrics = {} }: Event<'step-end'>): readonly string[] {
  const all = [...Object.entries(parts), ...Object.entries(metrics)];
  if (all.length === 0) return [];
  const shown = all.slice(0, MOST_MEASURES).map(([name, mean]) => `${printable(name)} ${figure(mean, 2)}`);
  const more = all.length > shown.length ? [`+${all.length - shown.length} more`] : [];
  return [`          ${styleText('dim', [...shown, ...more].join('  '))}`];
}

/** Only where there is something to see: the embedded policy agrees with itself to the bit. */
function agreement(event: Event<'step-end'>): readonly string[] {
  const isExact = event.largestDifference === 0 && event.ratio === 1;
  return isExact || event.ratio === undefined ? [] : [`          ${styleText('dim', agreementText(event))}`];
}

function summary(event: TrainDone, entry: string): readonly string[] {
  const { before, after, steps, seconds, run, ending } = event;
  const change =
    before !== null && after !== null ? `: held-out success ${percent(before.success)} → ${percent(after.success)}` : '';
  const whole = seconds < 100 ? `${seconds.toFixed(0)} s` : duration(seconds);
  const head = ending === 'interrupted' ? 'Interrupted after' : 'Done in';
  const stopped = STOPPED[ending];
  return [
    '',
    `${styleText('bold', `${head} ${whole}, ${count(steps, 'step')}${change}`)}`,
    ...(stopped === null || ending === 'interrupted' ? [] : [`Stopped early: ${stopped}`]),
    ...models(event, entry),
    ...(run === null
      ? []
      : [
          `Every rollout is in ${run}/store.sqlite, every event in ${run}/events.jsonl`,
          `Prove it with: ${asCalled(`trainyard verify ${shellWord(run)}`)}`,
        ]),
    ...(CAN_GO_ON.has(ending) && run !== null ? wayOn(run) : []),
  ];
}

/** Endings after which there is more to do. */
const CAN_GO_ON: ReadonlySet<RunEnding> = new Set(['interrupted', 'max-time', 'max-tokens']);

/** Which folder to use from now on, and how to measure it again. */
function models({ best, after, checkpoint: last, server, ...unusual }: TrainDone, entry: string): readonly string[] {
  const command = (model: string): string => measureCommand(entry, model, unusual);
  const again = (model: string): readonly string[] => ['Measure it again with:', `  ${asCalled(command(model))}`];
  const at = server === undefined ? 'is in' : `is at ${printable(server)}, by the name in`;
  if (best === null || best.checkpoint === last) {
    return last === null ? [] : [`The trained model ${at} ${last}`, ...again(last)];
  }
  return [
    `The best model on the way, ${percent(best.success)} after step ${best.step}, ${after === null ? '' : 'better than the last on the same tasks, '}${at} ${best.checkpoint}`,
    ...again(best.checkpoint),
    ...(last === null ? [] : [`The last one ${at} ${last}`]),
  ];
}

/** The line that says how to go on with a run. */
export function wayOn(run: string, verb: 'train' | 'eval' = 'train'): readonly string[] {
  return ['Go on with:', `  ${styleText('bold', asCalled(resumeCommand(run, verb)))}`];
}
