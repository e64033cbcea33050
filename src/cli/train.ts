/** `trainyard train` and `trainyard sft`: map flags to run/train, for new and resumed runs, and to run/sft. Return the exit code. */
import { TrainyardError } from '../core/errors.ts';
import type { Emit } from '../core/events.ts';
import { defined } from '../core/json.ts';
import type { SftSettings, TrainRequest } from '../settings/check-settings.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';
import { shellWord } from '../settings/settings.ts';
import { resume, train } from '../training/train.ts';
import { exitAfter, guarded } from './guarded.ts';
import { openReport, printing, wayOn } from './output/print.ts';
import { asCalled } from './output/text.ts';
import { entryGiven } from './verbs.ts';
import { viewBeside } from './view.ts';

interface TrainFlags extends Partial<Omit<TrainRequest, 'entry'>> {
  readonly json: boolean;
  readonly resume?: string;
  readonly tensorboard?: string | true;
  readonly view?: boolean;
}

export async function trainCommand(given: string | undefined, { json, resume: earlier, ...flags }: TrainFlags): Promise<number> {
  const { tensorboard, view = false, ...settings } = flags;
  // The flows file can serve as the entry.
  const entry = given ?? settings.flows;
  if (earlier !== undefined && settings.run !== undefined) {
    throw new TrainyardError('USAGE', 'found both --resume and --run', '--resume names the directory already');
  }
  const { model = EVAL_DEFAULTS.model, seed = EVAL_DEFAULTS.seed } = settings;
  const { from } = settings;
  const isNamed = earlier !== undefined || from !== undefined;
  const named = isNamed ? entry : entryGiven(entry, 'trainyard train <entry>, or trainyard train --resume <run>');
  const title = { verb: 'train', entry: named ?? earlier ?? from ?? '', model, seed, run: null } as const;
  using report = await openReport(json, title, tensorboard);
  let run: string | undefined;
  let hasBegun = false;
  using beside = viewBeside(view, settings.store);
  const emit: Emit = (event) => {
    if (event.type === 'run-start') {
      run = event.run;
      beside.open(run);
    }
    hasBegun ||= event.type === 'run-start' || event.type === 'sft-start';
    report.emit(event);
  };
  const onLeave = (): void => {
    report[Symbol.dispose]();
    if (run !== undefined) process.stderr.write(`${wayOn(run).join('\n')}\n`);
  };
  return await guarded(emit, { steps: true, hasBegun: () => hasBegun, onLeave }, async (interrupts) => {
    const { finish, stop } = interrupts;
    const options = { finish, stop, since: 0, watchStalls: true };
    const { ending } =
      earlier === undefined
        ? await train({ ...settings, ...defined({ entry: named }) } as TrainRequest, emit, options)
        : await resume({ ...settings, run: earlier, ...(entry === undefined ? {} : { entry }) }, emit, options);
    if (interrupts.by === 'SIGPIPE') onLeave();
    return ending === 'interrupted' ? exitAfter(interrupts) : 0;
  });
}

interface SftFlags extends Partial<Omit<SftSettings, 'from'>> {
  readonly json: boolean;
}

export async function sftCommand(from: string, { json, ...flags }: SftFlags): Promise<number> {
  const emit = printing(json);
  return await guarded(emit, { steps: true }, async (interrupts) => {
    const { finish, stop } = interrupts;
    const { sft } = await import('../training/sft.ts');
    const { checkpoint, ending } = await sft({ ...flags, from }, emit, { finish, stop, since: 0 });
    const model = shellWord(checkpoint ?? '');
    const lines = [
      'Measure it, on tasks that were not taught, or go on with reinforcement learning:',
      `  ${asCalled(`trainyard eval <entry> --model ${model}`)}`,
      `  ${asCalled(`trainyard train <entry> --model ${model}`)}`,
    ];
    if (!json && checkpoint !== null) console.log(lines.join('\n'));
    return ending === 'interrupted' ? exitAfter(interrupts) : 0;
  });
}
