/**
 * Why a step had nothing to learn from, in words: what the policy answered, which rewards it got and from whom, which groups were refused,
 * and what to do about it. Looks at the rollouts of one try only and blames nothing that they do not show.
 */
import { resolve } from 'node:path';
import type { Workflow } from '../core/contracts.ts';
import { shortLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Emit, RunEnding } from '../core/events.ts';
import { OVERFLOW_HINT } from '../core/policy.ts';
import { isSuccess, overflowOf } from '../core/turns.ts';
import type { Message, Trajectory, Turn } from '../core/types.ts';
import { hubNameOf } from '../engines/model-path.ts';
import { rewardsIn, rolloutReport, trajectoriesOf } from '../evaluation/results.ts';
import type { GroupBatch } from '../rollout/scheduler.ts';
import { BASE_MODEL, shortPath } from '../settings/settings.ts';
import { hasSignal } from './advantages.ts';

/** Who was trained. `model`: a folder, or a name at a server. */
interface Trained {
  readonly model: string;
  readonly workflow: Pick<Workflow, 'accepts'>;
}

type Tried = Pick<GroupBatch, 'withoutSignal'>;

const THREE_JOBS =
  'the shipped model, which knows only the jobs of examples/shop, examples/triage and examples/desk and their prompts';
const MEASURE_OR_CHANGE =
  'if your task is none of the three, measure the agent with a model that you use today (trainyard eval <entry> --engine openai --base-url URL --model NAME), or train a model that solves the task now and then (--model; trainyard help real-models), taught by the successes of that one if need be (--warm-start)';
/** Characters of the answer that is quoted. */
const LONGEST = 120;
/** Reasons for no reward that are listed. */
const MOST_KINDS = 4;

/** No step was taken; other tasks are tried. Warns, unless that is because every rollout succeeded. */
export function tellNoSignalYet(batch: GroupBatch, { workflow }: Pick<Trained, 'workflow'>, tell: Emit): void {
  if (isSolved(batch)) return;
  const { groups, reward } = rolloutReport(batch);
  const seen = Number.isNaN(reward) ? 'nothing was graded' : `mean reward ${reward.toFixed(2)}`;
  const own = givenByWorkflow(trajectoriesOf(batch.withoutSignal));
  const none = `none of ${groups} groups had two different rewards (${own ?? seen})`;
  const message = refusedIn(batch, workflow) ?? none;
  tell({ type: 'warning', code: 'NO_SIGNAL', message: `${message}; trying others` });
}

/**
 * Several tries had no signal: how the run ends. Throws NO_SIGNAL if it never took a step, unless every rollout of all tries succeeded. After
 * a step it has learned what its tasks could teach: the others may be unsolvable, or have wrong answers.
 */
export function endingWithoutSignal(tries: readonly Tried[], trained: Trained, step: number): RunEnding {
  const unsolved = tries.findLast((batch) => !isSolved(batch));
  if (unsolved === undefined) return 'solved';
  if (step > 0) return 'no-signal';
  throw noSignal(unsolved, trained, 'in several tries ');
}

export function noSignal(batch: Tried, trained: Trained, tried = ''): TrainyardError {
  const { why, hint } = causeOf(batch, trained);
  const all = trajectoriesOf(batch.withoutSignal);
  const isRefused = refusedIn(batch, trained.workflow) !== undefined;
  const got = `rewards of the last ${all.length} rollouts: ${rewardsText(all)}`;
  const found = isRefused ? [why, got] : [why, got, answersText(all), modelText(trained.model)];
  return new TrainyardError('NO_SIGNAL', `${tried}${found.join('; ')}`, hint);
}

export function isSolved({ withoutSignal }: Tried): boolean {
  const all = trajectoriesOf(withoutSignal);
  return all.length > 0 && all.every(isSuccess);
}

function refusedIn({ withoutSignal }: Tried, { accepts }: Trained['workflow']): string | undefined {
  const refused = accepts === undefined ? 0 : withoutSignal.filter(({ trajectories }) => hasSignal(trajectories)).length;
  return refused === 0
    ? undefined
    : `the workflow's own accepts (shouldAccept) refused ${shareOf(refused, withoutSignal.length)} groups with different rewards`;
}

function causeOf(batch: Tried, { model, workflow }: Trained): { readonly why: string; readonly hint: string } {
  const all = trajectoriesOf(batch.withoutSignal);
  const refused = refusedIn(batch, workflow);
  if (refused !== undefined) return { why: refused, hint: 'let it return true for groups that are to be trained' };
  const overflows = all.flatMap((trajectory) => (trajectory.turns.length === 0 && overflowOf(trajectory)) || []);
  if (overflows.length > 0 && overflows.length === all.length) {
    return { why: `no prompt fitted into the context (${overflows[0]})`, hint: OVERFLOW_HINT };
  }
  const rewards = rewardsIn(all);
  if (rewards.length === 0)
    return { why: 'no rollout got a reward', hint: 'see one rollout and its grading with trainyard try <entry>' };
  const why = 'no group had two different rewards';
  const own = givenByWorkflow(all);
  if (own !== undefined) {
    return {
      why,
      hint: `${own}: look where it returns or submits it; what a workflow gives is kept, and the grader is not asked`,
    };
  }
  const general =
    'see one rollout and its grading with trainyard try <entry>; then tasks that the policy solves sometimes but not always, a larger --group, or a grader with partial credit help; a policy that solves none can be taught first what a stronger model did: --warm-start (trainyard help guide/train)';
  return { why, hint: isShipped(model) ? MEASURE_OR_CHANGE : general };
}

/** Undefined unless all rewards are the workflow's own and equal. Quotes a line that a rollout logged, such as where it gave the reward. */
function givenByWorkflow(all: readonly Trajectory[]): string | undefined {
  const rewards = rewardsIn(all);
  const [first] = rewards;
  const isOwn = first && rewards.every(({ source, value }) => source === 'workflow' && value === first.value);
  if (!isOwn) return undefined;
  const [logged] = all.flatMap(({ logs = [] }) => logs.filter(({ from }) => from === undefined));
  const quoted = logged === undefined ? '' : ` (it logged "${shortLine(logged.text, 2 * LONGEST)}")`;
  return `the workflow itself gave every rollout the reward ${first.value}${quoted}`;
}

function rewardsText(all: readonly Trajectory[]): string {
  const kinds = Map.groupBy(all, ({ grade, outcome }) => {
    if (grade.kind === 'graded') return `by the ${grade.reward.source ?? 'grader'}`;
    if (outcome.kind === 'rejected') return `none, rejected (${shortLine(outcome.reason, LONGEST)})`;
    return `none (${shortLine(grade.kind === 'failed' ? grade.code : grade.why, LONGEST)})`;
  });
  const texts = [...kinds].map(([kind, same]) => {
    const values = [...new Set(rewardsIn(same).map(({ value }) => value))].toSorted((a, b) => a - b);
    const [low, high] = [values.at(0), values.at(-1)].map((value = 0) => Number(value.toPrecision(3)));
    return `${same.length} × ${values.length === 0 ? kind : `${low === high ? low : `${low} to ${high}`} ${kind}`}`;
  });
  return texts.slice(0, MOST_KINDS).join(', ') || 'nothing';
}

/** What begins a tool call in the formats that models write. */
const CALL = /<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|"arguments"\s*:/;

export function answersText(all: readonly Trajectory[]): string {
  const turns = all.flatMap(({ turns }) => turns.filter(({ model }) => model === undefined));
  if (turns.length === 0) return 'the policy answered nothing';
  const texts = turns.map(({ response }) => wordsIn(response));
  const isUnread = ({ request, response }: Turn): boolean =>
    request.tools.length > 0 && !response.tool_calls?.length && CALL.test(response.content ?? '');
  const shares = [
    [texts.filter((text) => text.trim() === '').length, 'were empty'],
    [turns.filter(({ stopReason }) => stopReason === 'length').length, 'were cut off at the token limit'],
    [turns.filter(isUnread).length, 'held a tool call that could not be read'],
  ] as const;
  const looks = shares.flatMap(([n, what]) => (n === 0 ? [] : [`${shareOf(n, turns.length)} ${what}`]));
  const equal = turns.length > 1 && new Set(texts).size === 1 ? ['all were equal'] : [];
  const shown = texts.find((text) => text.trim() !== '');
  const example = shown === undefined ? [] : [`one was ${JSON.stringify(shortLine(shown, LONGEST))}`];
  return `the policy gave ${turns.length} answers: ${[...looks, ...equal, ...example].join(', ')}`;
}

function wordsIn({ content, reasoning, tool_calls: calls = [] }: Message): string {
  return [reasoning ?? '', content ?? '', ...calls.map((call) => `${call.function.name}(${call.function.arguments})`)]
    .join(' ')
    .trim();
}

function shareOf(n: number, all: number): string {
  return n === all ? `all ${all}` : `${n} of ${all}`;
}

function isShipped(model: string): boolean {
  return resolve(model) === BASE_MODEL;
}

function modelText(model: string): string {
  return `the model is ${hubNameOf(model) ?? shortPath(model)}${isShipped(model) ? `, ${THREE_JOBS}` : ''}`;
}
