/** A model folder from what a person names: the folder itself, or the directory of the run that trained it. */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { checkpointName, savedSteps } from './checkpoint.ts';

/** Of a run, its best checkpoint on the held-out tasks where it says which that is, else its last. */
export async function checkpointIn(path: string): Promise<string> {
  if (existsSync(join(path, 'config.json'))) return path;
  const folder = join(path, 'checkpoints');
  const steps: readonly number[] = await savedSteps(folder).catch(() => []);
  const best = bestStep(path);
  const step = best !== undefined && steps.includes(best) ? best : steps.at(-1);
  if (step !== undefined) return join(folder, checkpointName(step));
  throw new TrainyardError(
    'FILE_NOT_FOUND',
    `checkpoint: expected a model folder or the directory of a run with checkpoints, found ${path}`,
    {
      hint: 'give --checkpoint runs/<name>, or one of the folders in its checkpoints',
    },
  );
}

/** As the run said when it last ended. */
function bestStep(run: string): number | undefined {
  const file = join(run, 'events.jsonl');
  if (!existsSync(file)) return undefined;
  const last = readFileSync(file, 'utf8')
    .split('\n')
    .findLast((line) => line.startsWith('{"type":"done"'));
  try {
    const { best } = JSON.parse(last ?? '{}') as { readonly best?: { readonly step?: unknown } | null };
    return typeof best?.step === 'number' ? best.step : undefined;
  } catch {
    return undefined;
  }
}
