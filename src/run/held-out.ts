/**
 * The held-out side of a training run: all tasks before and after, some of them every few steps, each once at temperature 0, and which step
 * did best.
 *
 * Steps are compared on the same tasks: those of the evaluations on the way. Of two that did equally well the later one is the
 * better. That of all is kept, but the last is recommended unless it was worse by more than chance: the highest of several scores is too
 * high. Everything is read back from the store when a run is resumed; nothing about it is kept anywhere else.
 */

import { mapConcurrently } from '../core/async.ts';
import type { Store } from '../core/contracts.ts';
import { printableLine } from '../core/describe.ts';
import type { Best, Emit, Score } from '../core/events.ts';
import { meanOf, signFlipChance } from '../core/statistics.ts';
import type { Message, Task, Trajectory } from '../core/types.ts';
import { scoreOf } from './evaluation-results.ts';
import type { Rollouts } from './parts.ts';
import type { NumberedTask } from './plan.ts';
import { samplingAt, type TrainSettings } from './settings.ts';
import { isSuccess } from './signal.ts';

type When = 'before' | 'during' | 'after';
type Measured = Omit<Best, 'checkpoint'>;

export interface HeldOutOptions {
  readonly tasks: readonly Task[];
  readonly settings: Pick<
    TrainSettings,
    'concurrency' | 'callTokens' | 'evalEvery' | 'evalTasks' | 'patience' | 'transcripts' | 'steps'
  >;
  readonly rollouts: Rollouts;
  readonly tell: Emit;
  readonly onProgress: (done: number, of: number) => void;
  /** Ends an evaluation early. */
  readonly halt: AbortSignal;
}

export class HeldOut {
  readonly #options: HeldOutOptions;
  readonly #all: readonly NumberedTask[];
  readonly #some: readonly NumberedTask[];
  /** Of each task of the evaluations on the way whether it was solved, 1 or 0, by step. */
  readonly #solved = new Map<number, readonly number[]>();

  constructor(options: HeldOutOptions) {
    this.#options = options;
    this.#all = numbered(options.tasks);
    this.#some = spread(this.#all, options.settings.evalTasks);
  }

  /** The step that did best so far, and how well; undefined before there was anything to compare. */
  get best(): Measured | undefined {
    const measured = Array.from(this.#solved, ([step, solved]) => ({ step, success: meanOf(solved) }));
    return measured.toSorted((a, b) => a.success - b.success).at(-1);
  }

  /** Whose model is to be used: the last step's, unless the best did better by more than chance, or the last was not measured. */
  recommended(last: number): Measured | undefined {
    const { best } = this;
    const solved = this.#solved.get(last);
    if (best === undefined || solved === undefined) return best;
    const differences = this.#solved.get(best.step)!.map((one, i) => one - solved[i]!);
    return signFlipChance(differences) < 0.05 ? best : { step: last, success: meanOf(solved) };
  }

  /** Whether `patience` evaluations in a row were no better than an earlier one. */
  get outOfPatience(): boolean {
    const { patience } = this.#options.settings;
    const successes = [...this.#solved].flatMap(([step, solved]) => (this.#isDue(step) ? [meanOf(solved)] : []));
    if (patience === 0 || successes.length <= patience) return false;
    return Math.max(...successes.slice(-patience)) <= Math.max(...successes.slice(0, -patience));
  }

  /** All tasks; null when there are none, or when it was halted. */
  async full(when: 'before' | 'after', step: number): Promise<Score | null> {
    if (this.#all.length === 0) return null;
    const trajectories = await this.#evaluate(this.#all, when, step);
    if (trajectories === undefined) return null;
    if (when === 'after' && step > 0) this.#note(step, trajectories);
    for (const trajectory of trajectories.slice(0, this.#options.settings.transcripts)) {
      this.#options.tell({ type: 'transcript', when, ...transcriptOf(trajectory) });
    }
    return scoreOf(trajectories);
  }

  /** The evaluation on the way, where one is due after this step. The last step's is the one after training. */
  async onTheWay(step: number): Promise<void> {
    if (!this.#isDue(step) || this.#solved.has(step)) return;
    const trajectories = await this.#evaluate(this.#some, 'during', step);
    if (trajectories !== undefined) this.#note(step, trajectories);
  }

  /**
   * Reads the evaluations up to this step back from the store. Those that are not whole are left to be run. Where a run is given more
   * steps, the one after what was its last step is among them: it may have been the best, and then its checkpoint stays.
   */
  async recall(store: Store, step: number): Promise<void> {
    const [first] = this.#some;
    if (first === undefined) return;
    for (let earlier = 1; earlier <= step; earlier++) {
      if ((await store.read(evaluationId(earlier, first.number))) === undefined) continue;
      const kept = await Promise.all(this.#some.map(({ number }) => store.read(evaluationId(earlier, number))));
      const whole = kept.filter((trajectory) => trajectory !== undefined);
      if (whole.length === kept.length) this.#note(earlier, whole);
    }
  }

  #isDue(step: number): boolean {
    const { evalEvery, steps } = this.#options.settings;
    return this.#all.length > 0 && evalEvery > 0 && step > 0 && step < steps && step % evalEvery === 0;
  }

  #note(step: number, trajectories: readonly Trajectory[]): void {
    const compared = new Set(this.#some.map(({ number }) => evaluationId(step, number)));
    const solved = trajectories.flatMap((one) => (compared.has(one.rolloutId) ? [isSuccess(one) ? 1 : 0] : []));
    this.#solved.set(step, solved);
  }

  /** The trajectories in the order of the tasks, or undefined when it was halted. */
  async #evaluate(tasks: readonly NumberedTask[], when: When, step: number): Promise<readonly Trajectory[] | undefined> {
    const { rollouts, settings, tell, onProgress, halt } = this.#options;
    const started = performance.now();
    const sampling = samplingAt(0, settings);
    let done = 0;
    const one = async ({ task, number }: NumberedTask): Promise<Trajectory> => {
      const rolloutId = evaluationId(step, number);
      const trajectory = await rollouts.run({ rolloutId, groupId: rolloutId, purpose: 'eval' }, task, sampling);
      onProgress(++done, tasks.length);
      return trajectory;
    };
    const trajectories = await mapConcurrently(tasks, settings.concurrency, one, halt);
    if (trajectories === undefined) return undefined;
    rollouts.settle();
    const seconds = (performance.now() - started) / 1000;
    tell({ type: 'eval-end', when, step, score: scoreOf(trajectories), seconds });
    return trajectories;
  }
}

export function numbered(tasks: readonly Task[]): readonly NumberedTask[] {
  return tasks.map((task, index) => ({ task, number: index + 1 }));
}

/** By the steps taken: one policy is evaluated once on one task. */
export function evaluationId(step: number, number: number): string {
  return `e${String(step).padStart(6, '0')}-${String(number).padStart(5, '0')}`;
}

/** `count` of the items, evenly spaced: a file may be sorted. */
export function spread<T>(items: readonly T[], count: number): readonly T[] {
  if (count >= items.length) return items;
  return Array.from({ length: count }, (_, i) => items[Math.floor((i * items.length) / count)] as T);
}

/** Characters of a line that are shown. */
const LONGEST_LINE = 200;

/** A trajectory as a person reads it: who said what, and the reward. */
interface Transcript {
  readonly taskId: string;
  readonly lines: readonly string[];
  readonly reward: number | null;
}

export function transcriptOf({ taskId, turns, grade }: Trajectory): Transcript {
  // The conversation that a grader looks at first: a judge that spoke last is not what is trained.
  const last = turns.findLast(({ trainable }) => trainable) ?? turns.at(-1);
  const messages = last === undefined ? [] : [...last.request.messages, last.response];
  return {
    taskId,
    lines: messages.filter(({ role }) => role !== 'system').flatMap(linesOf),
    reward: grade.kind === 'graded' ? grade.reward.value : null,
  };
}

function linesOf({ role, content, tool_calls }: Message): string[] {
  const calls = (tool_calls ?? []).map((call) => `${role}: ${call.function.name}(${call.function.arguments})`);
  return [...(content ? [`${role}: ${content}`] : []), ...calls].map((line) =>
    printableLine(line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)}…` : line),
  );
}
