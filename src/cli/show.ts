/**
 * `trainyard show` lists a run's rollouts, or shows one turn by turn with the causes of its forks. `trainyard curate` lists, adds or undoes
 * exclusions from training. `trainyard verify` redoes a run and compares; its exit code is 1 if anything differs or nothing could be
 * redone.
 */
import { styleText } from 'node:util';
import type { Verification } from '../audit/verify.ts';
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { warnBy } from '../core/events.ts';
import { rowFilter } from '../core/filter.ts';
import { defined } from '../core/json.ts';
import type { Purpose } from '../core/types.ts';
import {
  type CurationLine,
  curate,
  curationIn,
  RolloutIndex,
  type RolloutLine,
  type RolloutRow,
  rolloutIn,
  rolloutLine,
} from '../run/inspect.ts';
import { openStoreOf } from '../run/run-store.ts';
import { guarded } from './guarded.ts';
import { printing, saying } from './output/print.ts';
import { shownEnding, shownTurn } from './output/print-rollout.ts';
import { count, measures, took } from './output/text.ts';

/** Parts and metrics per rollout in the list; a single rollout shows all. */
const MOST_MEASURES = 6;

interface ShowFlags {
  readonly forks: boolean;
  readonly purpose?: Purpose;
  readonly filter?: string;
  readonly limit: number;
  readonly store?: string;
  readonly json: boolean;
}

export async function showCommand(path: string, rolloutId: string | undefined, flags: ShowFlags): Promise<number> {
  const passes = rowFilter(flags.filter ?? '');
  await using store = await openStoreOf(path, flags);
  const index = new RolloutIndex(store);
  const say = saying(flags.json);
  if (rolloutId === undefined) {
    await index.update();
    const rows = index.rows.filter((row) => (flags.purpose ?? row.purpose) === row.purpose && passes(row));
    const isForked = ({ forks }: RolloutRow): boolean => Object.keys(forks).length > 0;
    const shown = flags.forks ? rows.filter(isForked) : rows;
    for (const row of shown.slice(-flags.limit)) {
      const line = rolloutLine(row, (await store.read(row.rolloutId))!);
      const made = measures(Object.entries({ ...line.parts, ...line.metrics }), MOST_MEASURES, 2);
      say([[rolloutText(line), ...(made === '' ? [] : [styleText('dim', made)])].join(' · ')], line);
    }
    const hidden =
      shown.length > flags.limit ? `; only the last ${flags.limit} are shown: --limit ${shown.length} shows all` : '';
    if (!flags.json) console.log(`${count(rows.length, 'rollout')}, ${rows.filter(isForked).length} with forks${hidden}`);
    return 0;
  }
  const trajectory = await rolloutIn(store, path, rolloutId);
  await index.join();
  const line = rolloutLine(index.rowOf(trajectory), trajectory);
  if (!flags.json) console.log(rolloutText(line));
  for (const turn of trajectory.turns) {
    say(...shownTurn(turn, trajectory.turns, line.excludedTurns[turn.index] ?? line.excluded));
  }
  say(...shownEnding(trajectory));
  return 0;
}

function rolloutText(line: RolloutLine): string {
  const { outcome, reward, samples, excluded, abandoned, failedCalls } = line;
  const turnsOut = Object.keys(line.excludedTurns).length;
  const causes = Object.entries(line.forks).map(([cause, n]) => (n === 1 ? cause : `${cause} ×${n}`));
  return [
    styleText('bold', printableLine(line.rolloutId)),
    `task ${printableLine(line.taskId)}`,
    outcome,
    reward === null ? 'not graded' : `reward ${reward}`,
    count(line.turns, 'turn'),
    ...(line.purpose === 'eval' || samples === null ? ['not for training'] : [count(samples, 'sample')]),
    ...(line.step === null ? [] : [`trained in step ${line.step}`]),
    ...(causes.length > 0 ? [styleText('yellow', `forks: ${causes.join(', ')}`)] : []),
    ...(failedCalls > 0 ? [styleText('yellow', `${count(failedCalls, 'call')} failed`)] : []),
    ...(abandoned > 0 ? [`${count(abandoned, 'call')} abandoned`] : []),
    ...(excluded === null ? [] : [styleText('yellow', `excluded: ${printableLine(excluded)}`)]),
    ...(turnsOut === 0 ? [] : [styleText('yellow', `${count(turnsOut, 'turn')} excluded`)]),
  ].join(' · ');
}

interface CurateFlags {
  readonly turn?: number;
  readonly reason?: string;
  readonly undo: boolean;
  readonly store?: string;
  readonly json: boolean;
}

export async function curateCommand(path: string, rolloutIds: readonly string[], flags: CurateFlags): Promise<number> {
  const { turn, reason, undo, json } = flags;
  const isList = rolloutIds.length === 0;
  if (isList && (turn !== undefined || reason !== undefined || undo)) {
    const hint = `list them: trainyard show ${path}`;
    throw new TrainyardError('USAGE', 'expected the ids of rollouts, found none', hint);
  }
  await using store = await openStoreOf(path, flags);
  const lines = isList ? await curationIn(store) : await curate(store, { rolloutIds, turn, reason, undo });
  for (const line of lines) saying(json)([lineText(line)], line);
  if (!json) console.log(isList ? `${count(lines.length, 'exclusion')}` : `${count(lines.length, 'mark')} made`);
  return 0;
}

function lineText({ rolloutId, turn, excluded, reason, step, purpose }: CurationLine): string {
  const trained = step === null ? [] : [styleText('yellow', `trained in step ${step}: that stays`)];
  return [
    `${styleText('bold', printableLine(rolloutId))}${turn === undefined ? '' : ` turn ${turn}`}`,
    excluded ? 'excluded' : 'no longer excluded',
    printableLine(reason),
    ...trained,
    ...(purpose === 'eval' ? ['an evaluation: it is never trained'] : []),
  ].join(' · ');
}

/** Milliseconds between progress lines. */
const SILENCE = 5_000;

export async function verifyCommand(
  run: string,
  { json, store }: { readonly json: boolean; readonly store?: string },
): Promise<number> {
  const { verify } = await import('../audit/verify.ts');
  const emit = printing(json);
  const started = performance.now();
  let told = started;
  const onStep = (done: number, of: number): void => {
    if (json || performance.now() - told < SILENCE) return;
    told = performance.now();
    console.log(`${done} of ${count(of, 'step')} done again`);
  };
  const result = await guarded(emit, { steps: false }, ({ stop }) =>
    verify({ run, ...defined({ store }) }, { warn: warnBy(emit), stop, onStep }),
  );
  const seconds = (performance.now() - started) / 1000;
  saying(json)(verificationLines(result, seconds), { type: 'verified', run, ...result, seconds });
  const { turns, rewards, steps, different } = result;
  return different === 0 && turns + rewards + steps > 0 ? 0 : 1;
}

function verificationLines(result: Verification, seconds: number): readonly string[] {
  const { turns, rewards, steps, checkpoints, scores, different, first, unchecked } = result;
  const done = Object.entries({ turn: turns, reward: rewards, step: steps, checkpoint: checkpoints, score: scores });
  const counted = done.flatMap(([noun, n]) => (n === 0 ? [] : [count(n, noun)])).join(', ');
  const conclusion =
    first !== null
      ? styleText('red', `Not verified: ${count(different, 'difference')}`)
      : counted === ''
        ? styleText('yellow', 'Nothing was verified')
        : styleText('green', `Verified: ${counted} done again, all as they were kept`);
  const [where, kept, again, meaning] = [first?.where, first?.kept, first?.again, first?.meaning].map((text = '') =>
    printableLine(text),
  );
  const differs = `${where} ${styleText('red', 'differs')}: kept ${kept}, now ${again}`;
  return [
    ...(first === null ? [] : [differs, `  ${meaning}`]),
    ...unchecked.map((what) => `${styleText('yellow', 'not checked')} ${printableLine(what)}`),
    `${conclusion} (${took(seconds)})`,
    styleText('bold', `{ turns: ${turns}, rewards: ${rewards}, steps: ${steps}, different: ${different} }`),
  ];
}
