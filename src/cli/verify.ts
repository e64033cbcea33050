/** `trainyard verify`: does a run again and says whether everything is as it was kept. Returns the exit code: 1 where something is not, or nothing could be done again. */
import { styleText } from 'node:util';
import { printableLine } from '../core/describe.ts';
import type { Emit } from '../core/events.ts';
import { type Verification, verify } from '../run/verify.ts';
import { guarded } from './guard.ts';
import { jsonLines, textLines } from './print.ts';
import { count, took } from './text.ts';

/** Milliseconds between two lines about how far it is. */
const SILENCE = 5_000;

export async function verifyCommand(run: string, { json }: { readonly json: boolean }): Promise<number> {
  const emit: Emit = json ? jsonLines(process.stdout) : textLines(process.stdout);
  const started = performance.now();
  let told = started;
  const onStep = (done: number, of: number): void => {
    if (json || performance.now() - told < SILENCE) return;
    told = performance.now();
    console.log(`${done} of ${count(of, 'step')} done again`);
  };
  const result = await guarded(emit, { steps: false }, ({ stop }) =>
    verify({ run }, { warn: (code, message) => emit({ type: 'warning', code, message }), stop, onStep }),
  );
  const seconds = (performance.now() - started) / 1000;
  console.log(
    json ? JSON.stringify({ type: 'verified', run, ...result, seconds }) : verificationLines(result, seconds).join('\n'),
  );
  const { turns, rewards, steps, different } = result;
  return different === 0 && turns + rewards + steps > 0 ? 0 : 1;
}

export function verificationLines(result: Verification, seconds: number): readonly string[] {
  const { turns, rewards, steps, checkpoints, scores, different, first, unchecked } = result;
  const done = [
    [turns, 'turn'],
    [rewards, 'reward'],
    [steps, 'step'],
    [checkpoints, 'checkpoint'],
    [scores, 'score'],
  ] as const;
  const counted = done.flatMap(([n, noun]) => (n === 0 ? [] : [count(n, noun)])).join(', ');
  const verdict =
    first !== null
      ? styleText('red', `Not verified: ${count(different, 'difference')}`)
      : counted === ''
        ? styleText('yellow', 'Nothing was verified')
        : styleText('green', `Verified: ${counted} done again, all as they were kept`);
  return [
    ...(first === null
      ? []
      : [
          `${printableLine(first.where)} ${styleText('red', 'differs')}: kept ${printableLine(first.kept)}, now ${printableLine(first.again)}`,
          `  ${printableLine(first.meaning)}`,
        ]),
    ...unchecked.map((what) => `${styleText('yellow', 'not checked')} ${printableLine(what)}`),
    `${verdict} (${took(seconds)})`,
    styleText('bold', `{ turns: ${turns}, rewards: ${rewards}, steps: ${steps}, different: ${different} }`),
  ];
}
