/** Evaluation on its own: how good is this policy with this agent on these tasks? Keeps nothing. */
import type { Emit, Score, Warn } from '../core/events.ts';
import { memoryStore } from '../store/memory.ts';
import { evaluate, numbered, scoreOf } from './evaluate.ts';
import { preflight } from './preflight.ts';
import { type EvalRequest, evalSettings } from './settings.ts';
import type { TrainOptions } from './train.ts';
import { transcriptOf } from './transcript.ts';
import { openWorkshop } from './workshop.ts';

export async function evaluateOnly(
  request: EvalRequest,
  emit: Emit = () => {},
  stop: AbortSignal = new AbortController().signal,
  { watchStalls }: Pick<TrainOptions, 'watchStalls'> = {},
): Promise<Score> {
  const settings = evalSettings(request);
  const { entry, heldOut } = await preflight(settings);
  const warn: Warn = (code, message) => emit({ type: 'warning', code, message });
  await using workshop = await openWorkshop(settings, entry, {
    stop,
    warn,
    trainable: settings.trainable,
    watchStalls,
    files: { tasks: [settings.heldOut] },
  });
  await using store = memoryStore();
  const started = performance.now();
  const rollouts = workshop.rolloutsInto(store);
  const onProgress = (done: number, of: number): void =>
    emit({ type: 'progress', phase: 'evaluating', done, of, sampledTokens: rollouts.sampledTokens });
  const trajectories = (await evaluate(rollouts, numbered(heldOut), { step: 0, settings, onProgress })) ?? [];
  const score = scoreOf(trajectories);
  emit({ type: 'eval-end', when: 'only', step: 0, score, seconds: (performance.now() - started) / 1000 });
  for (const trajectory of trajectories.slice(0, settings.transcripts))
    emit({ type: 'transcript', when: 'only', ...transcriptOf(trajectory) });
  return score;
}
