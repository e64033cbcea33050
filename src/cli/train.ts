/** `trainyard train`: maps flags to run/train, for new and resumed runs. Returns the exit code. */
import { TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import type { TrainSettings } from '../run/check-settings.ts';
import { EVAL_DEFAULTS } from '../run/settings.ts';
import { resume, train } from '../run/train.ts';
import { guarded } from './guarded.ts';
import { openReport, wayOn } from './print.ts';
import { exitOf } from './program.ts';
import { entryGiven, type LimitFlags, withLimits } from './verbs.ts';

interface TrainFlags extends Partial<Omit<TrainSettings, 'entry'>>, LimitFlags {
  readonly json: boolean;
  readonly resume?: string;
}

export async function trainCommand(given: string | undefined, { json, resume: earlier, ...flags }: TrainFlags): Promise<number> {
  const settings = withLimits(flags);
  // The flows file can serve as the entry.
  const entry = given ?? settings.flows;
  if (earlier !== undefined && settings.run !== undefined) {
    throw new TrainyardError('USAGE', 'found both --resume and --run', { hint: '--resume names the directory already' });
  }
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = settings;
  const named = earlier === undefined ? entryGiven(entry, 'trainyard train <entry>, or trainyard train --resume <run>') : entry;
  using report = await openReport(json, { verb: 'train', entry: named ?? earlier ?? '', model, seed, run: null });
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
    const options = { finish, stop, since: 0, watchStalls: true };
    const { ending } =
      earlier === undefined
        ? await train({ ...settings, entry: named! }, emit, options)
        : await resume({ ...settings, run: earlier, ...(entry === undefined ? {} : { entry }) }, emit, options);
    if (interrupts.by === 'SIGPIPE') onLeave();
    return ending === 'interrupted' ? exitOf(interrupts.by) : 0;
  });
}
