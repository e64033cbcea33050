/**
 * `RolloutWorkflow`: the advanced interface, where the workflow asks the engine for tokens and decides which of them to train. Export the
 * subclass, or an instance if its constructor takes arguments. There is one instance per process: expensive work belongs in the
 * constructor, a rollout's state in local variables of `arunEpisode`, never in fields. Every completion is recorded as a turn; training
 * uses the recorded tokens, log-probabilities and policy version, whatever the workflow returns.
 */
import {
  type EntryModule,
  type GenerateRequest,
  type Workflow,
  type WorkflowContext,
  workflowSymbol,
} from '../../core/contracts.ts';
import { isConcrete, processOf, saysAbstract } from '../../core/define.ts';
import { checkedFields, checkNames, describeValue, kindOf } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { defined } from '../../core/json.ts';
import type { Json, Message, Tool, Turn } from '../../core/types.ts';
import {
  arealWorkflow,
  badReturn,
  type EpisodeData,
  type EpisodeGroup,
  entriesOf,
  episodeData,
  resultOfRewards,
  takesArguments,
} from './episode.ts';
import { type EpisodeSample, type ModelResponse, resultOfSamples } from './returned-samples.ts';

/** Rewards by completion id. Other completions get no reward of their own. */
export type Interactions = Readonly<Record<string, { readonly reward: number }>>;

/** Null rejects the rollout: it is kept but not trained. */
export type EpisodeResult = EpisodeSample | readonly EpisodeSample[] | Interactions | null;

export abstract class RolloutWorkflow<Metadata = Json | undefined> {
  abstract arunEpisode(engine: InferenceEngine, data: EpisodeData<Metadata>): Promise<EpisodeResult>;
  /** Whether to train on a task's group of rollouts. Absent: train on every group whose rewards differ. */
  shouldAccept?(group: EpisodeGroup): boolean;

  /** From 0 to 1: the share of a completion's reward that is added to the one before it. Used if `arunEpisode` returns interactions. */
  readonly turnDiscount: number = 1;

  static [workflowSymbol](this: typeof RolloutWorkflow, module: EntryModule): Workflow | undefined {
    // biome-ignore lint/complexity/noThisInStatic: the subclass that was exported
    return loweredClass(this, module);
  }

  [workflowSymbol](module: EntryModule): Workflow | undefined {
    checkEpisode(this.constructor.name, this.arunEpisode, module);
    return lowered(this.constructor, () => this, this);
  }
}

function loweredClass(Exported: typeof RolloutWorkflow, module: EntryModule): Workflow | undefined {
  if (!isConcrete(Exported, 'arunEpisode')) {
    lookForMisspelt(Exported, module);
    return undefined;
  }
  const Class = Exported as unknown as new () => RolloutWorkflow<never>;
  checkEpisode(Class.name, Class.prototype.arunEpisode, module);
  if (Class.length > 0) module.problem(takesArguments(Class.name, `export an instance: export default new ${Class.name}(…)`));
  return lowered(Class, () => new Class(), Class.prototype);
}

type Accepting = Pick<RolloutWorkflow, 'shouldAccept'>;

function lowered(Class: { readonly name: string }, make: () => RolloutWorkflow<never>, { shouldAccept }: Accepting): Workflow {
  const checked = (instance: RolloutWorkflow<never>): RolloutWorkflow<never> => {
    processOf(Class, instance);
    return checkedFields(instance, ['turnDiscount', 'shouldAccept']);
  };
  return arealWorkflow({
    name: Class.name || 'workflow',
    settings: { ...processOf(Class), usesTokens: true },
    make: () => checked(make()),
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

function resultOfInteractions(returned: unknown) {
  const entries = entriesOf(returned);
  if (entries === undefined) {
    const hint =
      'return samples { inputIds, lossMask, logprobs, versions, rewards }, interactions { [completion id]: { reward } }, or null';
    throw badReturn(`arunEpisode returned ${describeValue(returned)}`, hint);
  }
  const rewardOf = (interaction: unknown) => (interaction as { readonly reward?: unknown } | null)?.reward;
  return resultOfRewards(
    entries.map(([id, interaction]) => [id, rewardOf(interaction)]),
    'arunEpisode',
  );
}

/** A class without `arunEpisode` is a base class, unless it has one under a misspelt name. */
function lookForMisspelt(Class: typeof RolloutWorkflow, module: EntryModule): void {
  if (saysAbstract(Class)) return;
  const meant = ['arun_episode', 'arunEpisodes', 'aRunEpisode', 'runEpisode', 'run'].find((name) => name in Class.prototype);
  if (meant !== undefined) {
    module.problem(
      new TrainyardError(
        'WORKFLOW_INVALID',
        `${Class.name} has ${meant}, expected arunEpisode(engine, data)`,
        meant === 'run' ? 'an agent with run(data, extras) is marked by agentWorkflow(…)' : 'rename it',
      ),
    );
  }
}

function checkEpisode(name: string, episode: unknown, { problem }: EntryModule): void {
  const kind = kindOf(episode);
  if (kind === 'AsyncFunction') return;
  problem(
    new TrainyardError(
      'WORKFLOW_NOT_ASYNC',
      `arunEpisode of ${name} is a ${kind}, expected an async method`,
      'write async arunEpisode(engine, data) { … } and await what it calls: a blocking call stalls every other rollout',
    ),
  );
}

/** Sampling settings. For trained completions the run's settings take precedence; see the guide. */
export interface GenerationConfig {
  /** Must be 1. Call `agenerate` several times for several completions. */
  readonly nSamples?: number;
  readonly maxNewTokens?: number;
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  /** The completion ends before the first of these texts. */
  readonly stop?: readonly string[];
}

export interface ModelRequest {
  readonly inputIds: ArrayLike<number>;
  readonly gconfig?: GenerationConfig;
  /** A name for the request, copied to the response. */
  readonly rid?: string;
  readonly signal?: AbortSignal;
}

export interface InferenceEngine {
  agenerate(request: ModelRequest): Promise<ModelResponse>;
  /** Token ids of a conversation, including the generation prompt. */
  applyChatTemplate(messages: readonly Message[], tools?: readonly Tool[]): number[];
  /**
   * Continues a conversation: the previous response's ids verbatim, then the new messages. Rendering it afresh may not give the sampled
   * ids.
   */
  continueChat(previous: ModelResponse, newMessages: readonly Message[]): number[];
  /** Text of the ids, without the end of turn. */
  decode(ids: ArrayLike<number>): string;
}

export function engineOf(ctx: WorkflowContext): { readonly engine: InferenceEngine; readonly turns: readonly Turn[] } {
  const model = ctx.model();
  const turns: Turn[] = [];
  const turnOf = new WeakMap<ModelResponse, Turn>();
  const engine: InferenceEngine = {
    agenerate: async (request) => {
      const { id, text, turn } = await model.generate(generateRequest(request));
      if (turn === undefined) {
        throw badRequest(
          'tokens were asked for in a process that does not hold the policy',
          'run a RolloutWorkflow without isolation, or write an agent with run(data, extras)',
        );
      }
      const { promptIds, sampledIds, logprobs, policyVersion, stopReason } = turn;
      const response: ModelResponse = {
        id,
        rid: request.rid,
        stopReason,
        text,
        inputTokens: [...promptIds],
        outputTokens: [...sampledIds],
        outputLogprobs: [...logprobs],
        outputVersions: Array.from(sampledIds, () => policyVersion),
      };
      turns.push(turn);
      turnOf.set(response, turn);
      return response;
    },
    applyChatTemplate: (messages, tools = []) => [...model.render(messages, { tools })],
    continueChat: (previous, newMessages) => {
      const after = turnOf.get(previous);
      if (after !== undefined) return [...model.render(newMessages, { after })];
      const hint = 'pass what agenerate returned in this episode, as it is';
      throw badRequest('continueChat was given an answer that this rollout’s engine did not make', hint);
    },
    decode: (ids) => model.decode(ids),
  };
  return { engine, turns };
}

const SETTINGS = ['nSamples', 'maxNewTokens', 'temperature', 'topP', 'topK', 'stop'];

function generateRequest({ inputIds, gconfig = {}, signal }: ModelRequest): GenerateRequest {
  checkNames(gconfig, SETTINGS, 'gconfig', 'REQUEST_INVALID');
  const { nSamples = 1, maxNewTokens, temperature, topP, topK, stop } = gconfig;
  if (nSamples !== 1) {
    const hint = 'call agenerate several times for several answers; for several tries at a task use --group';
    throw badRequest(`nSamples is ${nSamples}, expected 1: an engine gives one answer to a request`, hint, 'nSamples');
  }
  return { promptIds: inputIds, ...defined({ maxTokens: maxNewTokens, temperature, topP, topK, stop, signal }) };
}

function badRequest(found: string, hint: string, param?: string): TrainyardError {
  return new TrainyardError('REQUEST_INVALID', found, { hint, param });
}
