/** `trainyard train`: flags → run/train, for a new run or one that is taken up again. Returns the exit code. */
import { TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { EVAL_DEFAULTS, type TrainSettings } from '../run/settings.ts';
import { resume, type TrainOptions, type TrainResult, train } from '../run/train.ts';
import { guarded } from './guard.ts';
import { EXIT_OF } from './interrupt.ts';
import { wayOn } from './lines.ts';
import { openReport } from './report.ts';
import { withLimits } from './rollout-limits.ts';

interface TrainFlags extends Partial<Omit<TrainSettings, 'entry'>> {
  readonly json: boolean;
  readonly resume?: string;
  readonly turns?: number;
  readonly graderDeadline?: number;
}

export async function trainCommand(given: string | undefined, { json, ...flags }: TrainFlags): Promise<number> {
  // The list of flows is an entry, too.
  const entry = given ?? flags.flows;
  const start = startOf(entry, withLimits(flags));
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = flags;
  using report = openReport(json, { verb: 'train', entry: entry ?? flags.resume ?? '', model, seed, run: null });
  let run: string | undefined;
  const emit: Emit = (event) => {
    if (event.type === 'run-start') run = event.run;
    report.emit(event);
  };
  const onLeave = (): void => {
    report[Symbol.dispose]();
    if (run !== undefined) process.stderr.write(`${wayOn(run).join('\n')}\n`);
  };
  return await guarded(emit, { steps: true, hasBegun: () => run !== undefined, onLeave }, async (interrupts) => {
    const { finish, stop } = interrupts;
    const { ending } = await start(emit, { finish, stop, since: 0, watchStalls: true });
    if (interrupts.by === 'SIGPIPE') onLeave();
    return ending === 'interrupted' ? EXIT_OF[interrupts.by ?? 'SIGINT'] : 0;
  });
}

type Start = (emit: Emit, options: TrainOptions) => Promise<TrainResult>;

function startOf(
  entry: string | undefined,
  { resume: earlier, ...settings }: Omit<TrainFlags, 'json' | 'turns' | 'graderDeadline'>,
): Start {
  if (earlier === undefined) {
    if (entry !== undefined) return (emit, options) => train({ entry, ...settings }, emit, options);
    throw new TrainyardError('USAGE', 'missing required argument: entry', {
      hint: 'trainyard train <entry>, or trainyard train --resume <run>',
    });
  }
  if (settings.run !== undefined) {
    throw new TrainyardError('USAGE', 'found both --resume and --run', { hint: '--resume names the directory already' });
  }
  const request = { ...settings, run: earlier, ...(entry === undefined ? {} : { entry }) };
  return (emit, options) => resume(request, emit, options);
}
