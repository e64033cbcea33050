/** `trainyard curate`: what is left out of training and why; leaves out more, or takes it back. Returns the exit code. */
import { styleText } from 'node:util';
import { TrainyardError } from '../core/errors.ts';
import { type CurationLine, curate, curationIn } from '../run/curate.ts';
import { openStoreOf } from '../run/inspect.ts';
import { count } from './phrases.ts';
import { printable } from './screen/width.ts';

export interface CurateFlags {
  readonly turn?: number;
  readonly reason?: string;
  readonly undo: boolean;
  readonly json: boolean;
}

export async function curateCommand(path: string, rolloutIds: readonly string[], flags: CurateFlags): Promise<number> {
  const { turn, reason, undo, json } = flags;
  const isList = rolloutIds.length === 0;
  if (isList && (turn !== undefined || reason !== undefined || undo)) {
    throw new TrainyardError('USAGE', 'expected the ids of rollouts, found none', {
      hint: `list them: trainyard show ${path}`,
    });
  }
  await using store = await openStoreOf(path);
  const lines = isList ? await curationIn(store) : await curate(store, { rolloutIds, turn, reason, undo });
  for (const line of lines) console.log(json ? JSON.stringify(line) : lineText(line));
  if (!json) console.log(isList ? `${count(lines.length, 'exclusion')}` : `${count(lines.length, 'mark')} made`);
  return 0;
}

function lineText({ rolloutId, turn, excluded, reason, step, purpose }: CurationLine): string {
  const trained = step === null ? [] : [styleText('yellow', `trained in step ${step}: that stays`)];
  return [
    `${styleText('bold', printable(rolloutId))}${turn === undefined ? '' : ` turn ${turn}`}`,
    excluded ? 'excluded' : 'no longer excluded',
    printable(reason),
    ...trained,
    ...(purpose === 'eval' ? ['an evaluation: it is never trained'] : []),
  ].join(' · ');
}
