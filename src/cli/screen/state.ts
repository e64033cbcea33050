/**
 * The live view's state: a pure reduction of a run's events, of bounded size. Times are seconds on the caller's clock. view.ts defines how
 * it looks.
 */
import type { Phase, RunEvent, StepReport } from '../../core/events.ts';
import { type Point, withPoint } from './chart.ts';

export interface Title {
  readonly verb: 'train' | 'eval';
  readonly entry: string;
  readonly model: string;
  readonly seed: number;
  readonly run: string | null;
}

interface Measure {
  readonly kind: 'parts' | 'metrics';
  readonly name: string;
  readonly points: readonly Point[];
  readonly last: number;
}

type Pace = Readonly<Record<'seconds' | 'sampledTokens' | 'trainedTokens', number>>;

const RECENT_STEPS = 10;
/** Bounds the state: a grader may use new names in every step. */
const MOST_MEASURES = 256;

export function startOf(title: Title, now: number) {
  return {
    title,
    /** Whether there is anything to show yet. */
    begun: false,
    now,
    /** Of the whole run; 0 if nothing is trained. */
    steps: 0,
    step: 0,
    /** Steps taken before this process resumed the run. */
    resumedAt: 0,
    /** When the last step ended, or the first began. */
    steppedAt: now,
    activity: null as { readonly phase: Phase; readonly done: number; readonly of: number; readonly since: number } | null,
    /** The current step is the last, after Ctrl-C. */
    finishing: false,
    over: false,
    rewards: [] as readonly Point[],
    reward: null as number | null,
    evaluations: [] as readonly Point[],
    success: null as { readonly first: number; readonly last: Point; readonly best: Point & { readonly n?: number } } | null,
    /** Of the last evaluation, and the sum of those during training. */
    evalSeconds: 0,
    evalSecondsDuring: 0,
    /** The last few steps, for speed and time left. */
    recent: [] as readonly Pace[],
    seconds: { rollout: 0, train: 0, save: 0 },
    groups: null as { readonly all: number; readonly withSignal: number } | null,
    /** Log-probability agreement of the last step. */
    agreement: null as Pick<StepReport, 'ratio' | 'offPolicyKl' | 'clipped' | 'largestDifference'> | null,
    staleGroups: 0,
    failedRollouts: 0,
    failedGrades: 0,
    ungraded: 0,
    /** Parts, then metrics, each in order of first appearance. */
    measures: [] as readonly Measure[],
  };
}
export type ViewState = Readonly<ReturnType<typeof startOf>>;

export function follow(before: ViewState, event: RunEvent, now: number): ViewState {
  const state = { ...before, now };
  switch (event.type) {
    case 'run-start': {
      const { steps, resumedAt = 0 } = event;
      const begun = { ...titled(state, event), steps, step: resumedAt, resumedAt, steppedAt: now };
      return doing(begun, event.heldOut > 0 && resumedAt === 0 ? 'evaluating' : 'rolling-out');
    }
    case 'eval-start':
      return doing(titled(state, event), 'evaluating');
    case 'progress':
      return doing({ ...state, begun: true }, event.phase, event.done, event.of);
    case 'eval-end':
      return withEvaluation(state, event);
    case 'step-end':
      return withStep(state, event);
    case 'warning':
      return { ...state, finishing: state.finishing || event.code === 'INTERRUPTED' };
    case 'done': {
      const best = 'best' in event && event.best && { best: { step: event.best.step, value: event.best.success } };
      return { ...state, success: state.success && { ...state.success, ...best }, activity: null, over: true };
    }
    case 'transcript':
    case 'error':
    case 'sft-start':
    case 'sft-step':
    case 'sft-end':
      return state;
  }
}

function titled(state: ViewState, { entry, model, seed, run }: Omit<Title, 'verb'>): ViewState {
  return { ...state, title: { ...state.title, entry, model, seed, run }, begun: true };
}

function doing(state: ViewState, phase: Phase, done = 0, of = 0): ViewState {
  const since = state.activity?.phase === phase ? state.activity.since : state.now;
  return { ...state, activity: { phase, done, of, since } };
}

function withEvaluation(state: ViewState, event: RunEvent & { readonly type: 'eval-end' }): ViewState {
  const { n } = event.score;
  const last = { step: event.step, value: event.score.success };
  const { first, best } = state.success ?? { first: last.value, best: { ...last, n } };
  const known = {
    ...state,
    evaluations: withPoint(state.evaluations, last),
    // The latest among equals wins, as in the run itself. Results on different tasks are not compared.
    success: { first, last, best: last.value >= best.value || best.n !== n ? { ...last, n } : best },
    evalSeconds: event.seconds,
    evalSecondsDuring: state.evalSecondsDuring + (event.when === 'during' ? event.seconds : 0),
  };
  if (event.when === 'after' || event.when === 'only') return { ...known, activity: null };
  return { ...doing(known, 'rolling-out'), ...(event.when === 'before' ? { steppedAt: state.now } : {}) };
}

function withStep(state: ViewState, report: StepReport): ViewState {
  const { rolloutSeconds: rollout, trainSeconds: train, saveSeconds: save, sampledTokens, trainedTokens } = report;
  const pace = { seconds: rollout + train + save, sampledTokens, trainedTokens };
  const { seconds } = state;
  const next = {
    ...state,
    step: report.step,
    steppedAt: state.now,
    rewards: withPoint(state.rewards, { step: report.step, value: report.reward }),
    reward: report.reward,
    recent: [...state.recent, pace].slice(-RECENT_STEPS),
    seconds: { rollout: seconds.rollout + rollout, train: seconds.train + train, save: seconds.save + save },
    groups: { all: report.groups, withSignal: report.groups - report.groupsWithoutSignal },
    agreement: report.ratio === undefined ? state.agreement : report,
    staleGroups: state.staleGroups + report.staleGroups,
    failedRollouts: state.failedRollouts + report.failedRollouts,
    failedGrades: state.failedGrades + report.failedGrades,
    ungraded: state.ungraded + report.ungraded,
    measures: withMeasures(state.measures, report),
  };
  return doing(next, 'rolling-out');
}

/** A measure missing from a step keeps its last value. */
function withMeasures(measures: readonly Measure[], report: StepReport): readonly Measure[] {
  const all = new Map(measures.map((measure) => [`${measure.kind} ${measure.name}`, measure]));
  for (const kind of ['parts', 'metrics'] as const) {
    for (const [name, value] of Object.entries(report[kind] ?? {})) {
      const key = `${kind} ${name}`;
      const points = withPoint(all.get(key)?.points ?? [], { step: report.step, value });
      if (all.has(key) || all.size < MOST_MEASURES) all.set(key, { kind, name, points, last: value });
    }
  }
  // A stable sort: keeps the order within each kind.
  return [...all.values()].toSorted((a, b) => Number(a.kind === 'metrics') - Number(b.kind === 'metrics'));
}

/** Null until there is a basis for an estimate. Counts down within a step; never negative. */
export function secondsLeft(state: ViewState): number | null {
  const { recent, steps, step, resumedAt, evalSeconds, evalSecondsDuring, now, steppedAt, finishing, over } = state;
  const taken = step - resumedAt;
  if (recent.length === 0 || taken < 1 || step >= steps || finishing || over) return null;
  const perStep = recent.reduce((sum, { seconds }) => sum + seconds, 0) / recent.length + evalSecondsDuring / taken;
  const left = (steps - step) * perStep + evalSeconds - Math.min(now - steppedAt, perStep);
  return Number.isFinite(left) ? Math.max(0, left) : null;
}

/** Over the last few steps, including waiting, training and saving. Null if that time is too short. */
export function tokensPerSecond({ recent }: ViewState): { readonly sampled: number; readonly trained: number } | null {
  const sum = (of: (pace: Pace) => number): number => recent.reduce((total, pace) => total + of(pace), 0);
  const seconds = sum((pace) => pace.seconds);
  if (!(seconds > 0.001)) return null;
  return { sampled: sum((pace) => pace.sampledTokens) / seconds, trained: sum((pace) => pace.trainedTokens) / seconds };
}
