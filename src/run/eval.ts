/** Evaluation on its own: how good is this policy with this agent on these tasks? Keeps nothing unless given a run directory. */
import type { Emit, Score } from '../core/events.ts';
import { memoryStore } from '../store/memory.ts';
import { evaluate } from './evaluate.ts';
import { preflight } from './preflight.ts';
import type { EvalSettings } from './settings.ts';
import { transcriptOf } from './transcript.ts';
import { openWorkshop } from './workshop.ts';

export async function evaluateOnly(
  settings: EvalSettings,
  emit: Emit,
  stop: AbortSignal = new AbortController().signal,
): Promise<Score> {
  const { entry, heldOut } = await preflight({ entry: settings.entry, heldOut: settings.heldOut });
  await using workshop = await openWorkshop(settings, entry, stop);
  for (const message of workshop.warnings) emit({ type: 'warning', code: 'UNKILLABLE_GRADER', message });
  await using store = memoryStore();
  const { score, seconds, trajectories } = await evaluate(workshop.rolloutsInto(store), heldOut, 'only', settings);
  emit({ type: 'eval-end', when: 'only', score, seconds });
  for (const trajectory of trajectories.slice(0, settings.transcripts))
    emit({ type: 'transcript', when: 'only', ...transcriptOf(trajectory) });
  return score;
}
