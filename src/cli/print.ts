/**
 * Plain text output for pipes, logs and scrollback: a run's events, turns with the origin of their prompt, and how a rollout ended. With
 * `--json`, one JSON object per line.
 */
import { basename } from 'node:path';
import { styleText } from 'node:util';
import { printableLine, shortLine } from '../core/describe.ts';
import type { CallReport, Emit, EvalDone, RunEnding, RunEvent, TagReport, TrainDone, Unusual } from '../core/events.ts';
import { type ModelPlan, OVERFLOW_HINT } from '../core/policy.ts';
import { overflowOf, type TurnSummary } from '../core/turns.ts';
import type { Grade, Message, Outcome, Reward, Trajectory, UnansweredCall } from '../core/types.ts';
import type { Rewritten } from '../run/inspect.ts';
import { hubNameOf } from '../run/model-path.ts';
import { resumeCommand, shellWord } from '../run/settings.ts';
import type { Title } from './screen/state.ts';
import {
  agreementText,
  asCalled,
  count,
  duration,
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

export type Report = Disposable & { readonly emit: Emit };

/** Live view on a terminal, otherwise plain lines or JSON. */
export async function openReport(json: boolean, title: Title): Promise<Report> {
  if (!json && wantsScreen(process.stdout.isTTY === true, process.env)) {
    return (await import('./screen/screen.ts')).attachScreen(title);
  }
  return { emit: json ? jsonLines(process.stdout) : textLines(process.stdout), [Symbol.dispose]: () => {} };
}

/** Every event except `progress`, which is only for display. */
export function jsonLines(out: NodeJS.WritableStream): Emit {
  return (event) => {
    if (event.type !== 'progress') out.write(`${JSON.stringify(event)}\n`);
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
      return [`${styleText('yellow', 'warning')} ${event.code}: ${printableLine(event.message)}${hint}`];
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
  return [`${doing}: ${source}, ${heldOut} held out, seed ${seed}`, ...places(event)];
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

function places({ model, server, run, plan }: Event<'run-start'> | Event<'eval-start'> | Event<'sft-start'>): readonly string[] {
  return [
    ...(plan === undefined ? [] : [planText(model, plan)]),
    ...(server === undefined ? [] : [`Policy ${printableLine(model)}`]),
    ...(run === null ? [] : [`Run directory ${printableLine(run)}`]),
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
  const [failed, ungraded] = [some(', ', score.failed, 'failed'), some(', ', score.ungraded, 'not graded')];
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
  const { before, after, steps, seconds, run, ending } = event;
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
    `Every rollout is in ${run}/store.sqlite, every event in ${run}/events.jsonl`,
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
  const kept = `Every rollout is in ${run}/store.sqlite, the numbers are in ${run}/metrics.json`;
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

function callsLine({ n, medianSeconds, p95Seconds, promptTokens, completionTokens }: CallReport): string {
  const times = `median ${medianSeconds.toFixed(2)} s, 95 % within ${p95Seconds.toFixed(2)} s`;
  return `${count(n, 'model call')}: ${times}; ${promptTokens} prompt and ${completionTokens} completion tokens`;
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

/** Characters of a message, in a list and in a rollout shown in full. */
const LONGEST = 160;
const LONGEST_READ = 4000;
/** Characters of a value. */
const LONGEST_VALUE = 400;
/** Shows only the last unanswered calls. */
const MOST_CALLS = 20;

/** `read`: shows the turn in full, including new messages of its prompt. */
export function turnText(
  turn: TurnSummary,
  read?: { readonly rewritten: Rewritten | null; readonly prompt: readonly Message[] },
): string {
  const { index, thread, after, fork, promptTokens, sampledTokens, stopReason, response } = turn;
  const where = fork?.message === undefined ? '' : ` at message ${fork.message}`;
  const causes = fork === null ? '' : [fork.cause, ...(fork.also ?? [])].join(' and ');
  const instead = fork?.cause === 'side_call' ? 'next to' : 'instead of going on from';
  const origin = after === null ? 'rendered afresh' : `extends turn ${after}`;
  const cut = stopReason === 'length' ? ['cut off'] : [];
  const tokens = `${promptTokens} + ${sampledTokens} tokens`;
  const marks = [
    ...(turn.model === null
      ? [tokens, ...cut, origin]
      : [`said by ${printableLine(turn.model)}`, ...(turn.usage === null ? [] : [tokens]), took(turn.seconds), ...cut]),
    ...(fork === null ? [] : [styleText('yellow', `${causes}${where}, ${instead} turn ${fork.from}`)]),
    ...(turn.undelivered ? ['nobody got it'] : []),
    ...(turn.trainable ? [] : ['not trained']),
    ...(turn.formatError === null ? [] : [`not in the format asked for: ${printableLine(turn.formatError)}`]),
    ...(turn.ignored.length === 0 ? [] : [`without effect: ${turn.ignored.map(printableLine).join(', ')}`]),
  ];
  const { rewritten, prompt } = read ?? { rewritten: null, prompt: [] };
  const longest = read === undefined ? LONGEST : LONGEST_READ;
  const words = wordsOf(response, longest).map((line) => `    ${line}`);
  // After a prompt, an empty response would look like missing output.
  const answered = read !== undefined && words.length === 0 ? [styleText('dim', '    (said nothing)')] : words;
  return [
    `  ${styleText('bold', `${index}`)} ${printableLine(thread)} · ${marks.join(' · ')}`,
    ...(rewritten ? [changedLine('was', rewritten.was), changedLine('is', rewritten.is)] : []),
    ...prompt.flatMap((message) =>
      wordsOf(message, longest).map((line) => styleText('dim', `    ${message.role}: ${line.trimStart()}`)),
    ),
    ...answered,
  ].join('\n');
}

function changedLine(word: string, message: Message | null): string {
  const said = message === null ? 'nothing' : `${message.role}: ${wordsOf(message, LONGEST).join(' ').trim()}`;
  return styleText('dim', `    ${word.padEnd(3)} ${said}`);
}

function wordsOf({ reasoning, content, tool_calls: calls = [] }: Message, longest: number): readonly string[] {
  const said = [
    ...(reasoning ? [`(${reasoning})`] : []),
    ...(content ? [content] : []),
    ...calls.map((call) => `${call.function.name}(${call.function.arguments})`),
  ];
  return said.map((text) => shortLine(text, longest));
}

export function endingLines(trajectory: Trajectory): readonly string[] {
  const { outcome, grade, output, metadata, metrics, logs = [], unanswered = [], startedAt } = trajectory;
  const sizes = outcome.kind === 'truncated' && outcome.limit === 'context' ? printableLine(overflowOf(trajectory, ': ')) : '';
  const todo = sizes === '' ? '' : `${sizes} (${OVERFLOW_HINT})`;
  return [
    ...unanswered.slice(-MOST_CALLS).map(callLine),
    ...logs.map(({ at, text }) => styleText('dim', `    ${((at - startedAt) / 1000).toFixed(2)} s  ${printableLine(text)}`)),
    `${styleText('bold', outcome.kind)}${outcomeDetail(outcome)}${todo} · ${gradeText(grade, outcome)}`,
    ...Object.entries({ output, metadata, metrics }).flatMap(([name, value]) => valueLine(name, value)),
  ];
}

function callLine({ thread, turnsBefore, promptTokens, sampledTokens, failure }: UnansweredCall): string {
  const what = failure ? styleText('yellow', `call failed, ${failure.code}: ${printableLine(failure.message)}`) : 'call given up';
  const when = turnsBefore === 0 ? 'before any turn' : `after turn ${turnsBefore - 1}`;
  return `  - ${printableLine(thread)} · ${what} · ${when} · ${promptTokens} + ${sampledTokens} tokens`;
}

const NO_TURNS = ' (it ended before any model call through ctx.model() was answered)';

function outcomeDetail(outcome: Outcome): string {
  if (outcome.kind === 'truncated') return ` by its limit of ${outcome.limit}`;
  if (outcome.kind === 'failed') return ` ${outcome.code}: ${printableLine(outcome.message)}`;
  if (outcome.kind === 'completed') return '';
  return `: ${printableLine(outcome.reason)}${outcome.reason === 'no_turns' ? NO_TURNS : ''}`;
}

/** Named values of a reward, with the prefix for each name. */
const NAMED = [
  ['parts', ''],
  ['metrics', 'metric '],
  ['byTurn', 'turn '],
  ['byThread', 'thread '],
  ['byRole', 'role '],
] as const satisfies readonly (readonly [keyof Reward, string])[];

function gradeText(grade: Grade, outcome: Outcome): string {
  if (grade.kind === 'ungraded') return grade.why === outcome.kind ? 'not graded' : `not graded: ${printableLine(grade.why)}`;
  if (grade.kind === 'failed') return styleText('red', `grading failed, ${grade.code}: ${printableLine(grade.message)}`);
  const { value, source, success, untrained = [] } = grade.reward;
  const marks = [
    ...(source === 'workflow' ? ['by the workflow'] : []),
    ...(success === undefined ? [] : [success ? 'a success' : 'no success']),
    ...NAMED.flatMap(([kind, word]) =>
      Object.entries(grade.reward[kind] ?? {}).map(([name, number]) => printableLine(`${word}${name} ${number}`)),
    ),
    ...untrained.map((thread) => printableLine(`thread ${thread} not trained`)),
  ];
  return `reward ${value}${marks.length > 0 ? ` (${marks.join(', ')})` : ''}`;
}

function valueLine(name: string, value: unknown): readonly string[] {
  const isEmpty = typeof value === 'object' && value !== null && Object.keys(value).length === 0;
  if (value === undefined || isEmpty) return [];
  return [`  ${name}: ${shortLine(typeof value === 'string' && value !== '' ? value : JSON.stringify(value), LONGEST_VALUE)}`];
}
