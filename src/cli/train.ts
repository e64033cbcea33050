/** `trainyard train`: flags → settings → run/train. */
import { existsSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { beside, TRAIN_DEFAULTS } from '../run/settings.ts';
import { train } from '../run/train.ts';
import { guarded } from './guard.ts';
import { reporter } from './report.ts';

export interface TrainFlags {
  readonly tasks?: string;
  readonly heldOut?: string;
  readonly model?: string;
  readonly run?: string;
  readonly steps: number;
  readonly group: number;
  readonly groups: number;
  readonly concurrency: number;
  readonly seed: number;
  readonly transcripts: number;
  readonly json: boolean;
}

export async function trainCommand(entry: string, flags: TrainFlags): Promise<void> {
  const { steps, group, groups, concurrency, seed, transcripts } = flags;
  const settings = {
    ...TRAIN_DEFAULTS,
    entry,
    tasks: flags.tasks ?? beside(entry, 'train.jsonl'),
    heldOut: flags.heldOut ?? (existsSync(beside(entry, 'held-out.jsonl')) ? beside(entry, 'held-out.jsonl') : undefined),
    model: flags.model ?? TRAIN_DEFAULTS.model,
    run: flags.run ?? defaultRun(entry),
    steps,
    group,
    groupsPerStep: groups,
    concurrency,
    seed,
    transcripts,
  };
  const emit = reporter(flags.json);
  await guarded(emit, (stop) => train(settings, emit, { stop, since: 0 }));
}

/** runs/shop-20261115-081703: named by the entry's folder and the time. */
function defaultRun(entry: string): string {
  const time = new Date().toISOString().replace(/[-:]/g, '').replace('T', '-').slice(0, 15);
  const name = basename(dirname(join(process.cwd(), entry))) || 'run';
  return join('runs', `${name}-${time}`);
}
