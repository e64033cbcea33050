/** A run that is interrupted while its parts are opened: who asked for it is told, not which part was closed. */
import { expect, it } from 'vitest';
import { TrainyardError } from '../../src/core/errors.ts';
import { evaluateOnly } from '../../src/evaluation/evaluate.ts';
import { train } from '../../src/training/train.ts';

const entry = new URL('../../examples/triage/agent.ts', import.meta.url).pathname;
const heldOut = [{ prompt: 'Where is my parcel?', answer: 'shipping' }];
const interrupted = () => new TrainyardError('CANCELLED', 'interrupted');

it('an evaluation ends with the reason it was given', async () => {
  const reason = interrupted();
  await expect(evaluateOnly({ entry, heldOut }, undefined, AbortSignal.abort(reason))).rejects.toBe(reason);
});

it('a training, softly interrupted before it began, says so', async () => {
  const finish = AbortSignal.abort();
  await expect(train({ entry, tasks: heldOut, heldOut, minTasks: 1 }, undefined, { finish })).rejects.toThrow(
    'interrupted before the run began',
  );
});
