/**
 * `trainyard/osmosis/openai-agents`: OpenAI Agents SDK agents whose model is the policy, and sessions that are named samples. The SDK does
 * not tell a model which session it is called for, so the session records itself when the runner reads it, in a store that follows the run
 * across awaits. A chain of handoffs in one session is one sample.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import {
  Agent,
  type AgentInputItem,
  type AgentOptions,
  type AgentOutputType,
  MemorySession,
  type TextOutput,
} from '@openai/agents';
import { currentSamples, type SampleContext } from '../core/context.ts';
import { checkNames } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { PromptMessage } from '../core/types.ts';
import {
  type AgentEvent,
  type AgentRequest,
  type AgentResponse,
  type AnyItem,
  messagesOf,
  type PolicyModel,
  policy,
} from './openai-agents.ts';
import { activeSamples, inCamelCase, placeholderUsed, sampleView } from './request.ts';

/** One run of the SDK in a session. The store keeps it for the awaiting code after it ends, so it carries an end marker. */
interface SessionRun {
  readonly context: SampleContext;
  readonly name: string;
  /** Number of tools in flight. An agent used as a tool ends in the middle of the run that it shares. */
  tools: number;
  isOver: boolean;
}

const activeSession = new AsyncLocalStorage<SessionRun>();
const sessionRuns = new WeakMap<object, SessionRun>();

/** Stands in for the policy until an `OsmosisAgent` is created with it. */
export class OsmosisRolloutModel implements PolicyModel {
  constructor(...options: readonly never[]) {
    if (options.length === 0) return;
    const found = 'OsmosisRolloutModel takes no options: it is the policy of the rollout';
    throw new TrainyardError('CONFIG_INVALID', found, 'give modelSettings to the OsmosisAgent');
  }

  getResponse(_request: AgentRequest): Promise<AgentResponse> {
    throw placeholderUsed('give it to an OsmosisAgent');
  }

  getStreamedResponse(_request: AgentRequest): AsyncIterable<AgentEvent> {
    throw placeholderUsed('give it to an OsmosisAgent');
  }
}

/** The policy of the rollout that the call happens in, in the conversation of the call's session. */
const sessionModel: PolicyModel = {
  getResponse: async (request) => inSession().getResponse(request),
  getStreamedResponse: (request) => inSession().getStreamedResponse(request),
};

export class OsmosisAgent<TContext = unknown, TOutput extends AgentOutputType = TextOutput> extends Agent<TContext, TOutput> {
  constructor(options: AgentOptions<TContext, TOutput>) {
    inCamelCase(options.modelSettings ?? {}, 'modelSettings of OsmosisAgent');
    super(
      inCamelCase(options, 'OsmosisAgent').model instanceof OsmosisRolloutModel ? { ...options, model: sessionModel } : options,
    );
    this.on('agent_tool_start', (run) => withRun(run, (own) => own.tools++));
    this.on('agent_tool_end', (run) => withRun(run, (own) => own.tools--));
    this.on('agent_end', (run) =>
      withRun(run, (own) => {
        own.isOver = own.tools === 0;
      }),
    );
  }
}

/** Keeps a conversation of one rollout. Outside a rollout, it is the SDK's own memory session. */
export class OsmosisMemorySession extends MemorySession {
  readonly name: string;
  readonly acceptsRunContext = true;
  readonly #context: SampleContext | undefined;

  constructor(options: { readonly name?: string } = {}) {
    checkNames(options, ['name'], 'OsmosisMemorySession', 'CONFIG_INVALID');
    const { name } = options;
    const context = currentSamples();
    const sample = name ?? context?.nameForUnnamed() ?? 'session';
    super({ sessionId: sample });
    this.name = sample;
    this.#context = context;
    const getSample = async (id: string) => {
      const items = await super.getItems();
      return sampleView(id, () => messagesOf(undefined, items as readonly AnyItem[]), items);
    };
    context?.registerSampleSource(sample, { getSample });
  }

  override getItems(limit?: number, run?: object): Promise<AgentInputItem[]> {
    this.#enter(run);
    return super.getItems(limit);
  }

  override addItems(items: AgentInputItem[], run?: object): Promise<void> {
    this.#enter(run);
    return super.addItems(items);
  }

  /** Takes effect for the caller too, because it runs before the first await. */
  #enter(run: object | undefined): void {
    const context = currentSamples();
    if (context === undefined) return;
    if (context !== this.#context) {
      throw new TrainyardError(
        'NO_ROLLOUT',
        'OsmosisMemorySession was used inside a RolloutContext it was not registered with',
        'construct the session inside run(ctx), while the rollout context is active',
      );
    }
    const own = (run && sessionRuns.get(run)) ?? { context, name: this.name, tools: 0, isOver: false };
    if (run !== undefined) sessionRuns.set(run, own);
    activeSession.enterWith(own);
  }
}

/** `ctx.prompt` as SDK input; they differ in the form of assistant messages. */
export function inputItems(prompt: readonly PromptMessage[]): AgentInputItem[] {
  return prompt.map(({ role, content }): AgentInputItem => {
    if (role === 'system') return { role, content };
    if (role === 'user') return { role, content };
    return { role, status: 'completed', content: [{ type: 'output_text', text: content }] };
  });
}

function withRun(run: object, tell: (own: SessionRun) => void): void {
  const own = sessionRuns.get(run);
  if (own !== undefined) tell(own);
}

function inSession(): PolicyModel {
  const context = activeSamples();
  const session = activeSession.getStore();
  // A rollout run inside another inherits the outer session, which is not its own.
  if (session?.context === context && !session.isOver) return policy(context.model(session.name));
  throw new TrainyardError(
    'NO_ROLLOUT',
    'OsmosisRolloutModel was called without an active OsmosisMemorySession',
    'pass one to the run: run(agent, input, { session: new OsmosisMemorySession({ name }) })',
  );
}
