/** Opens the coordinator of a run whose rollouts run on external workers: what they must know of it, and its first weights. */
import { dirname, relative, resolve } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import type { Trainer } from '../core/policy.ts';
import { savedFiles } from '../engines/checkpoint.ts';
import type { Entry } from '../rollout/discovery.ts';
import type { Place } from '../rollout/runner.ts';
import type { EvaluationSettings, TrainSettings } from '../settings/check-settings.ts';
import { hiddenFiles, ownRelease } from '../settings/settings.ts';
import type { RunParts } from './parts.ts';
import type { EvaluationPlan, TrainPlan } from './plan.ts';
import { besideOf, sourcesOf } from './preflight.ts';

/** The coordinator, as a run sees it. */
export interface ExternalWorkers extends Place, AsyncDisposable {
  /** Whether the run has ended, so that nothing of it is needed any more. */
  isDone: boolean;
  /** The same trainer; what it publishes is for workers too. */
  around(trainer: Trainer): Trainer;
}

type Coordinated = Pick<TrainPlan | EvaluationPlan, 'settings' | 'entry' | 'kernels'> & {
  readonly parts: RunParts;
  /** The run's. */
  readonly id: string | undefined;
  readonly warn: Warn;
};

/** Undefined if rollouts run here. */
export async function coordinatorOf({
  settings,
  entry,
  kernels,
  parts,
  id,
  warn,
}: Coordinated): Promise<ExternalWorkers | undefined> {
  const { store: url, workers, entry: file, model } = settings;
  if (workers === undefined || url === undefined || id === undefined) return undefined;
  if (typeof file !== 'string') {
    const hint = 'give the path of a file that exports the workflow: workers load it themselves';
    throw new TrainyardError('USAGE', 'entry: expected a file beside workers, found a value', hint);
  }
  const { Coordinator } = await import('../places/workers/coordinator.ts');
  const { trainer, sampled: policy } = parts.policy;
  const { roles, othersTrainable = true } = entry.workflow;
  const sources = await sourcesOf(file, settings.flows, entry);
  const hidden = await hiddenFor(file, settings, entry);
  const own = { ...shared(settings), hidden };
  const beside = await besideOf(file, sources, [
    settings.run,
    model,
    settings.heldOut,
    'tasks' in settings && settings.tasks,
    ...hidden,
  ]);
  return await Coordinator.open({
    url,
    run: id,
    warn,
    policy,
    limits: settings.limits,
    isTrained: (role) => settings.trainable?.includes(role) ?? roles[role]?.trainable ?? othersTrainable,
    staleness: 'staleness' in settings ? settings.staleness : 0,
    ...(trainer && {
      save: (folder: string) => savedFiles(trainer, folder, model, { optimizer: false }),
      forget: (folder: string) => trainer.forget(folder),
    }),
    spec: { release: ownRelease(), entry: relative(process.cwd(), file), settings: own, sources, beside, kernels },
  });
}

/** Paths that isolated rollouts must not read: where they are on this machine, and from the folder of the entry. */
async function hiddenFor(file: string, settings: TrainSettings | EvaluationSettings, entry: Entry): Promise<readonly string[]> {
  const module = entry.workflowModule ?? entry.flowModule;
  if (module === undefined || entry.workflow.isolation === 'none') return [];
  const { hiddenBy, secretPaths } = await import('../places/process/rollout-sandbox.ts');
  const folder = dirname(resolve(file));
  const paths = [...hiddenBy(entry.workflow, module.url), ...secretPaths(hiddenFiles(settings), folder)];
  return [...paths, ...paths.map((path) => relative(folder, path))];
}

/** Without what a worker must not know, or has of its own: answers, the database and its password. It finds files as it finds the entry. */
function shared(settings: TrainSettings | EvaluationSettings): Readonly<Record<string, unknown>> {
  const { entry: _entry, store: _store, run: _run, heldOut: _heldOut, threads: _threads, flows, ...rest } = settings;
  const own = { ...rest, ...(flows && { flows: relative(process.cwd(), flows) }) };
  return Object.fromEntries(Object.entries(own).filter(([name]) => name !== 'tasks'));
}
