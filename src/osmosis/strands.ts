/**
 * `trainyard/osmosis/strands`: a Strands agent whose model is the policy of the rollout it is built in.
 *
 * Each agent is a named sample of its own. An agent with another model than the placeholder is a plain Strands agent: nothing of it is
 * recorded. Nothing is printed unless `printer` asks for it.
 */
import {
  Agent,
  type AgentConfig,
  type AgentResult,
  type InvokeArgs,
  type InvokeOptions,
  type MessageData,
  Model,
  type ModelStreamEvent,
} from '@strands-agents/sdk';
import { TrainyardError } from '../core/errors.ts';
import type { Message, PromptMessage } from '../core/types.ts';
import { type AnyBlock, messagesOf, PolicyModel, type PolicyModelConfig } from '../integrations/strands.ts';
import { activeContext } from './no-context.ts';
import type { RolloutContext } from './rollout-context.ts';
import { RolloutSample } from './rollout-sample.ts';

const PARAMS: readonly string[] = ['temperature', 'topP', 'topK', 'maxTokens', 'stop'];

export type RolloutModelParams = Pick<PolicyModelConfig, 'temperature' | 'topP' | 'topK' | 'maxTokens' | 'stop'>;

/** Stands for the policy until an agent is built with it, so that a config at the top of a module may hold it. */
export class OsmosisRolloutModel extends Model<PolicyModelConfig> {
  readonly params: RolloutModelParams;

  constructor({ params = {} }: { readonly params?: RolloutModelParams } = {}) {
    super();
    const unknown = Object.keys(params).filter((name) => !PARAMS.includes(name));
    if (unknown.length > 0) {
      throw new TrainyardError('CONFIG_INVALID', `OsmosisRolloutModel has no parameter ${unknown.join(', ')}`, {
        hint: `its parameters are ${PARAMS.join(', ')}`,
      });
    }
    this.params = { ...params };
  }

  updateConfig(): never {
    throw placeholderUsed();
  }

  getConfig(): PolicyModelConfig {
    return { modelId: 'osmosis-rollout', ...this.params };
  }

  stream(): AsyncIterable<ModelStreamEvent> {
    throw placeholderUsed();
  }
}

export interface OsmosisStrandsAgentConfig extends Omit<AgentConfig, 'messages'> {
  /** `ctx.prompt` as it is, or messages of Strands. System messages become the system prompt. */
  readonly messages?: readonly (PromptMessage | MessageData)[];
  /** Accepted for those who come from Python; nothing is printed anyway. */
  readonly callbackHandler?: null;
}

export class OsmosisStrandsAgent extends Agent {
  constructor({ callbackHandler: _, ...config }: OsmosisStrandsAgentConfig) {
    const bound = config.model instanceof OsmosisRolloutModel ? boundTo(activeContext(), config.model, config) : undefined;
    const conversation = conversationOf(config);
    super({
      printer: false,
      ...config,
      ...conversation,
      ...(bound === undefined ? {} : { model: bound.model, name: bound.name }),
    });
    bound?.context.registerSampleSource(bound.name, { getSample: (id) => sampleOf(id, this) });
  }

  /** Goes on from the messages it has; with arguments, from those after them. */
  override invoke(args: InvokeArgs = [], options?: InvokeOptions): Promise<AgentResult> {
    return super.invoke(args, options);
  }

  /** `invoke` by its Python name. */
  invokeAsync(args: InvokeArgs = [], options?: InvokeOptions): Promise<AgentResult> {
    return this.invoke(args, options);
  }
}

function boundTo(context: RolloutContext, { params }: OsmosisRolloutModel, { name, id }: OsmosisStrandsAgentConfig) {
  const sample = name ?? id ?? context.nameForUnnamed();
  return { context, name: sample, model: new PolicyModel(context.model(sample), params) };
}

interface Conversation extends Pick<AgentConfig, 'systemPrompt'> {
  readonly messages: MessageData[];
}

function conversationOf({ messages = [], systemPrompt }: OsmosisStrandsAgentConfig): Conversation {
  const systems = messages.filter(({ role }) => (role as string) === 'system').map(({ content }) => textOf(content));
  const others = messages.filter(({ role }) => (role as string) !== 'system') as readonly (PromptMessage | MessageData)[];
  const prompt = systems.length === 0 ? systemPrompt : joined(systemPrompt, systems);
  return { messages: others.map(blocksOf), ...(prompt === undefined ? {} : { systemPrompt: prompt }) };
}

function joined(given: AgentConfig['systemPrompt'], systems: readonly string[]): AgentConfig['systemPrompt'] {
  if (given === undefined || typeof given === 'string') return [...(given ? [given] : []), ...systems].join('\n\n');
  throw new TrainyardError('REQUEST_INVALID', 'systemPrompt: found blocks, and the messages hold a system message too', {
    hint: 'give the system prompt as a text, or leave it to the messages',
  });
}

/** A text becomes a block; what is in blocks already stays as it is. */
function blocksOf(message: PromptMessage | MessageData): MessageData {
  const { role, content } = message as MessageData | Exclude<PromptMessage, { role: 'system' }>;
  return typeof content === 'string' ? { role, content: [{ text: content }] } : (message as MessageData);
}

function textOf(content: string | MessageData['content']): string {
  if (typeof content === 'string') return content;
  return content.map((block) => ('text' in block && typeof block.text === 'string' ? block.text : '')).join('');
}

/** What cannot be put as ordinary messages is shown as Strands has it: a grader can still look at it. */
function sampleOf(id: string, agent: Agent): RolloutSample {
  try {
    const system = agent.systemPrompt as string | readonly AnyBlock[] | undefined;
    return new RolloutSample({ id, messages: messagesOf(system, agent.messages) });
  } catch {
    return new RolloutSample({ id, messages: agent.messages as unknown as readonly Message[] });
  }
}

function placeholderUsed(): TrainyardError {
  return new TrainyardError('NO_ROLLOUT', 'OsmosisRolloutModel is a placeholder and cannot be called itself', {
    hint: 'give it to an OsmosisStrandsAgent that is built inside run(ctx)',
  });
}
