/**
 * The policy as a `RolloutWorkflow` sees it: tokens in, tokens out, with log-probabilities and the policy version of each token.
 *
 * Every answer is a recorded turn of the rollout. Which of them are trained, and with what reward, is what the workflow returns; the
 * tokens themselves are trained from the record, whatever it returns.
 */
import type { ModelHandle, WorkflowContext } from '../core/contracts.ts';
import { checkNames } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Message, StopReason, Tool, Turn } from '../core/types.ts';

/** How to sample. What is trained is sampled as the run says, whatever stands here; see the guide. */
export interface GenerationConfig {
  /** Only 1: ask several times for several answers. */
  readonly nSamples?: number;
  readonly maxNewTokens?: number;
  readonly temperature?: number;
  readonly topP?: number;
  readonly topK?: number;
  /** The answer ends before the first of these texts. */
  readonly stop?: readonly string[];
}

export interface ModelRequest {
  readonly inputIds: ArrayLike<number>;
  readonly gconfig?: GenerationConfig;
  /** A name for the request, given back with the answer. */
  readonly rid?: string;
  readonly signal?: AbortSignal;
}

export interface ModelResponse {
  /** Of the completion: a name for it in `Interactions`. */
  readonly id: string;
  readonly rid: string | undefined;
  readonly inputTokens: readonly number[];
  readonly outputTokens: readonly number[];
  /** Of each output token. */
  readonly outputLogprobs: readonly number[];
  readonly outputVersions: readonly number[];
  readonly stopReason: StopReason;
  /** What was said. */
  readonly text: string;
}

export interface InferenceEngine {
  agenerate(request: ModelRequest): Promise<ModelResponse>;
  /** Ids of a conversation up to where the model begins to speak. */
  applyChatTemplate(messages: readonly Message[], tools?: readonly Tool[]): number[];
  /**
   * Ids of a conversation that goes on: those of the answer before as they are, then the new messages. Rendering the whole conversation
   * again may write the answer with other tokens than were sampled.
   */
  continueChat(previous: ModelResponse, newMessages: readonly Message[]): number[];
  /** Text of ids, without what ends a turn. */
  decode(ids: ArrayLike<number>): string;
}

/** An engine of one rollout, and the turns that it made there. */
export interface RecordingEngine {
  readonly engine: InferenceEngine;
  readonly turns: readonly Turn[];
}

export function engineOf(ctx: WorkflowContext): RecordingEngine {
  const model = ctx.model();
  const turns: Turn[] = [];
  const turnOf = new WeakMap<ModelResponse, Turn>();
  const engine: InferenceEngine = {
    agenerate: async (request) => {
      const { response, turn } = await generate(model, request);
      turns.push(turn);
      turnOf.set(response, turn);
      return response;
    },
    applyChatTemplate: (messages, tools = []) => [...model.render(messages, { tools })],
    continueChat: (previous, newMessages) => {
      const after = turnOf.get(previous);
      if (after !== undefined) return [...model.render(newMessages, { after })];
      throw new TrainyardError('REQUEST_INVALID', 'continueChat was given an answer that this rollout’s engine did not make', {
        hint: 'pass what agenerate returned in this episode, as it is',
      });
    },
    decode: (ids) => model.decode(ids),
  };
  return { engine, turns };
}

async function generate(
  model: ModelHandle,
  { inputIds, gconfig = {}, rid, signal }: ModelRequest,
): Promise<{ readonly response: ModelResponse; readonly turn: Turn }> {
  checkNames(gconfig, ['nSamples', 'maxNewTokens', 'temperature', 'topP', 'topK', 'stop'], 'gconfig', 'REQUEST_INVALID');
  const { nSamples = 1, maxNewTokens, temperature, topP, topK, stop } = gconfig;
  if (nSamples !== 1) {
    throw new TrainyardError('REQUEST_INVALID', `nSamples is ${nSamples}, expected 1: an engine gives one answer to a request`, {
      hint: 'call agenerate several times for several answers; for several tries at a task use --group',
      param: 'nSamples',
    });
  }
  const { id, text, turn } = await model.generate({
    promptIds: inputIds,
    ...(maxNewTokens === undefined ? {} : { maxTokens: maxNewTokens }),
    ...(temperature === undefined ? {} : { temperature }),
    ...(topP === undefined ? {} : { topP }),
    ...(topK === undefined ? {} : { topK }),
    ...(stop === undefined ? {} : { stop }),
    ...(signal === undefined ? {} : { signal }),
  });
  if (turn === undefined) {
    throw new TrainyardError('REQUEST_INVALID', 'tokens were asked for in a process that does not hold the policy', {
      hint: 'run a RolloutWorkflow without isolation, or write an agent with run(data, extras)',
    });
  }
  const outputTokens = [...turn.sampledIds];
  const response: ModelResponse = {
    id,
    rid,
    inputTokens: [...turn.promptIds],
    outputTokens,
    outputLogprobs: [...turn.logprobs],
    outputVersions: outputTokens.map(() => turn.policyVersion),
    stopReason: turn.stopReason,
    text,
  };
  return { response, turn };
}
