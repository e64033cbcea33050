/**
 * `RolloutWorkflow`: the advanced way, in which the workflow itself asks the engine for tokens and says which of them are trained.
 *
 * Export the subclass, or an instance of it where the constructor takes arguments. There is one instance per process: what costs a lot goes
 * into the constructor, and what belongs to one rollout into `arunEpisode`'s variables, never into fields.
 */

import { type EntryModule, type Workflow, workflowSymbol } from '../core/contracts.ts';
import { isConcrete, saysAbstract } from '../core/define.ts';
import { checkedFields, describeValue, kindOf } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json } from '../core/types.ts';
import { engineOf, type InferenceEngine } from './engine.ts';
import { type EpisodeData, episodeData } from './episode-data.ts';
import { arealWorkflow, type EpisodeGroup } from './lowered.ts';
import { type EpisodeSample, resultOfSamples } from './returned-samples.ts';
import { badReturn, entriesOf, resultOfRewards } from './rewards-by-completion.ts';

/** What completions earned, by their ids. The others earned nothing of their own. */
export type Interactions = Readonly<Record<string, { readonly reward: number }>>;

/** Null rejects the rollout: it is kept and not trained. */
export type EpisodeResult = EpisodeSample | readonly EpisodeSample[] | Interactions | null;

export abstract class RolloutWorkflow<Metadata = Json | undefined> {
  /** One rollout. */
  abstract arunEpisode(engine: InferenceEngine, data: EpisodeData<Metadata>): Promise<EpisodeResult>;
  /** Whether a task's group of rollouts may be trained on; absent: any whose rewards differ. */
  shouldAccept?(group: EpisodeGroup): boolean;

  /** From 0 to 1: how much of what a completion earned counts for the one before it, where `arunEpisode` returns interactions. */
  readonly turnDiscount: number = 1;

  static [workflowSymbol](this: typeof RolloutWorkflow, module: EntryModule): Workflow | undefined {
    // biome-ignore lint/complexity/noThisInStatic: the subclass that was exported
    return loweredClass(this, module);
  }

  [workflowSymbol](module: EntryModule): Workflow | undefined {
    checkEpisode(this.constructor.name, this.arunEpisode, module);
    return lowered(this.constructor.name, () => this, this);
  }
}

function loweredClass(Exported: typeof RolloutWorkflow, module: EntryModule): Workflow | undefined {
  if (!isConcrete(Exported, 'arunEpisode')) {
    lookForMisspelt(Exported, module);
    return undefined;
  }
  const Class = Exported as unknown as new () => RolloutWorkflow<never>;
  checkEpisode(Class.name, Class.prototype.arunEpisode, module);
  if (Class.length > 0) {
    module.problem(
      new TrainyardError('WORKFLOW_INVALID', `the constructor of ${Class.name} takes arguments, and nobody knows which to give`, {
        hint: `export an instance: export default new ${Class.name}(…)`,
      }),
    );
  }
  return lowered(Class.name, () => new Class(), Class.prototype);
}

function lowered(
  name: string,
  make: () => RolloutWorkflow<never>,
  { shouldAccept }: Pick<RolloutWorkflow, 'shouldAccept'>,
): Workflow {
  return arealWorkflow({
    name: name || 'workflow',
    make: () => checkedFields(make(), ['turnDiscount', 'shouldAccept']),
    shouldAccept: shouldAccept && ((group, instance) => instance().shouldAccept!(group)),
    run: async (instance, ctx) => {
      const { engine, turns } = engineOf(ctx);
      const returned: unknown = await instance.arunEpisode(engine, episodeData(ctx));
      if (returned === null) return null;
      if (Array.isArray(returned)) return resultOfSamples(returned, turns);
      if (isSample(returned)) return resultOfSamples([returned], turns);
      return { ...resultOfInteractions(returned), credit: { turnDiscount: instance.turnDiscount, per: 'turn' } };
    },
  });
}

function isSample(returned: unknown): returned is EpisodeSample {
  return typeof returned === 'object' && returned !== null && 'inputIds' in returned;
}

function resultOfInteractions(returned: unknown): ReturnType<typeof resultOfRewards> {
  const entries = entriesOf(returned);
  if (entries === undefined) {
    const hint =
      'return samples { inputIds, lossMask, logprobs, versions, rewards }, interactions { [completion id]: { reward } }, or null';
    throw badReturn(`arunEpisode returned ${describeValue(returned)}`, hint);
  }
  return resultOfRewards(
    entries.map(([id, interaction]) => [id, (interaction as { readonly reward?: unknown } | null)?.reward]),
    'arunEpisode',
  );
}

/** A class without an episode is a base of others, unless its episode only has another name. */
function lookForMisspelt(Class: typeof RolloutWorkflow, module: EntryModule): void {
  if (saysAbstract(Class)) return;
  const meant = ['arun_episode', 'arunEpisodes', 'aRunEpisode', 'runEpisode', 'run'].find((name) => name in Class.prototype);
  if (meant !== undefined) {
    module.problem(
      new TrainyardError('WORKFLOW_INVALID', `${Class.name} has ${meant}, expected arunEpisode(engine, data)`, {
        hint: meant === 'run' ? 'an agent with run(data, extras) is marked by agentWorkflow(…)' : 'rename it',
      }),
    );
  }
}

function checkEpisode(name: string, episode: unknown, { problem }: EntryModule): void {
  const kind = kindOf(episode);
  if (kind === 'AsyncFunction') return;
  problem(
    new TrainyardError('WORKFLOW_NOT_ASYNC', `arunEpisode of ${name} is a ${kind}, expected an async method`, {
      hint: 'write async arunEpisode(engine, data) { … } and await what it calls: a blocking call stalls every other rollout',
    }),
  );
}
