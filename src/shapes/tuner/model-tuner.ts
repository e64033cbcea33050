/**
 * The model of an episode. Used directly, it is the policy. `registerModel` and `getModel` attribute calls to roles, so that some roles can
 * be trained while default models answer for the others. All roles share one policy. Whether a role is trained is evaluated at every call,
 * so a change takes effect at once; the run's `--trainable` overrides the workflow. The gateway decides which model answers.
 */
import type {
  DefaultModelAnswer,
  DefaultModelLike,
  DefaultModelRequest,
  ModelHandle,
  WorkflowContext,
} from '../../core/contracts.ts';
import { checkDefaultModel, described } from '../../core/define.ts';
import { checkNames, describeValue } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import { defined, parsedJson } from '../../core/json.ts';
import { type ModelForms, modelInForm } from '../../core/model-forms.ts';
import type { Message, ToolCall } from '../../core/types.ts';
import { generateStructured, type Structured, type StructuredRequest } from './structured.ts';

type LanguageModel = ModelForms['ai-sdk'];
type AgentsModel = ModelForms['openai-agents'];

/** One role's model as a `ctx.model(role)` handle, an AI SDK language model and an OpenAI Agents SDK `Model`. Requires neither SDK. */
export class TunedModel implements ModelHandle, LanguageModel, AgentsModel {
  declare readonly role: string;
  declare readonly name: string;
  declare readonly baseURL: string;
  declare readonly apiKey: string;
  declare readonly fetch: typeof globalThis.fetch;
  declare readonly openai: ModelHandle['openai'];
  declare readonly anthropic: ModelHandle['anthropic'];
  declare readonly generate: ModelHandle['generate'];
  declare readonly render: ModelHandle['render'];
  declare readonly decode: ModelHandle['decode'];
  readonly specificationVersion = 'v4';
  readonly provider = 'trainyard';
  readonly modelId: string;
  readonly supportedUrls: LanguageModel['supportedUrls'] = {};
  readonly doGenerate: LanguageModel['doGenerate'] = (options) => modelInForm('ai-sdk', this.#handle).doGenerate(options);
  readonly doStream: LanguageModel['doStream'] = (options) => modelInForm('ai-sdk', this.#handle).doStream(options);
  readonly getResponse: AgentsModel['getResponse'] = (request) => modelInForm('openai-agents', this.#handle).getResponse(request);
  readonly getStreamedResponse: AgentsModel['getStreamedResponse'] = (request) =>
    modelInForm('openai-agents', this.#handle).getStreamedResponse(request);
  readonly #handle: ModelHandle;

  constructor(handle: ModelHandle) {
    const { thread: _, ...own } = handle;
    Object.assign(this, own);
    this.#handle = handle;
    this.modelId = handle.name;
  }

  generateStructured<T>(request: StructuredRequest<T>): Promise<Structured<T>> {
    return generateStructured(this.#handle, request);
  }

  thread(name: string): TunedModel {
    return new TunedModel(this.#handle.thread(name));
  }
}

/** Says which roles are trained; undefined: all. */
interface Targets {
  readonly trainableTargets?: readonly string[] | undefined;
}

export interface RegisterOptions {
  /** Answers for the role while it is not trained. Absent: the policy answers, untrained. */
  readonly defaultModel?: DefaultModelGiven | undefined;
}

export class ModelTuner extends TunedModel {
  readonly #rollout: WorkflowContext;
  readonly #targets: Targets;
  readonly #registered = new Map<string, { readonly model: TunedModel; readonly defaultModel: string }>();
  #mistake: TrainyardError | undefined;
  #wasAsked = false;
  #wasTrained = false;

  constructor(rollout: WorkflowContext, targets: Targets) {
    // The unnamed role: only the targets decide whether it is trained.
    super(rollout.model(undefined, { trainable: () => this.#isTrained(this.role) }));
    this.#rollout = rollout;
    this.#targets = targets;
  }

  /** Returns the role's model. Throws WORKFLOW_INVALID if the role is registered with two default models of different names. */
  registerModel(role: string, options: RegisterOptions = {}): TunedModel {
    checkNames(options, ['defaultModel'], 'registerModel', 'WORKFLOW_INVALID');
    if (typeof role !== 'string' || role === '')
      throw invalid(`registerModel was given role ${described(role)}, expected a name`);
    const { defaultModel: given } = options;
    const model = given === undefined ? undefined : defaultModelOf(given, `role ${JSON.stringify(role)}`);
    const name = model === undefined ? 'none, the policy itself' : model.name || 'a function';
    const was = this.#registered.get(role)?.defaultModel;
    if (was !== undefined && was !== name) {
      const hint = 'give every registration of a role the same default model, or use another role';
      throw invalid(`role ${JSON.stringify(role)} has two default models: WAS ${was}, NOW ${name}`, hint);
    }
    const trainable = () => this.#isTrained(role);
    const handle = this.#rollout.model(role, { trainable, ...defined({ default: model }) });
    this.#registered.set(role, { model: new TunedModel(handle), defaultModel: name });
    return this.getModel(role);
  }

  getModel(role: string): TunedModel {
    const registered = this.#registered.get(role);
    if (registered !== undefined) return registered.model;
    const roles = [...this.#registered.keys()].join(', ') || 'none';
    const hint = `call modelTuner.registerModel(${describeValue(role)}, { defaultModel }) first`;
    throw invalid(`role ${describeValue(role)} is not registered; registered are ${roles}`, hint);
  }

  /** A mistake in the targets that a call found: the true cause of whatever error the agent's framework then throws. */
  get mistake(): TrainyardError | undefined {
    return this.#mistake;
  }

  /** Called at the end of an episode; throws WORKFLOW_INVALID if the targets are wrong. */
  check(): void {
    if (this.#mistake !== undefined) throw this.#mistake;
    const { trainableTargets: targets } = this.#targets;
    const roles = [...this.#registered.keys(), this.role];
    // The targets may have changed since the calls were made.
    if (!this.#wasAsked || this.#wasTrained || this.#rollout.purpose !== 'train' || targets === undefined) return;
    if (targets.some((target) => roles.includes(target))) return;
    const found = `no role is trained: trainableTargets is ${targets.join(', ')}, and the roles are ${roles.join(', ')}`;
    const hint = 'name roles that the workflow registers; register them also in episodes in which they do not speak';
    throw invalid(found, hint);
  }

  #isTrained(role: string): boolean {
    this.#wasAsked = true;
    const { trainableTargets: targets } = this.#targets;
    if (targets?.length === 0 && this.#rollout.purpose === 'train') {
      const hint = 'leave trainableTargets out to train every role, or name some; --trainable names them for one run';
      this.#mistake = invalid('no role is trained: trainableTargets is an empty list', hint);
      throw this.#mistake;
    }
    const isTrained = targets?.includes(role) ?? true;
    this.#wasTrained ||= isTrained;
    return isTrained;
  }
}

function invalid(found: string, hint?: string): TrainyardError {
  return new TrainyardError('WORKFLOW_INVALID', found, hint);
}

export interface LanguageModelLike {
  readonly specificationVersion: string;
  readonly modelId: string;
  // The SDK's versions differ in their parameter types; the options passed here fit all of them.
  doGenerate(options: never): PromiseLike<{
    readonly content: readonly { readonly type: string }[];
    readonly finishReason: unknown;
  }>;
}

export interface ChatModelLike {
  _llmType(): string;
  // Methods of LangChain's classes, whose versions differ in their types.
  invoke(messages: never, options?: never): Promise<object>;
  bindTools?(tools: never, options?: never): object;
}

/** As core accepts it (a server, a function, a `DefaultModel`), or a language model of the AI SDK, or a chat model of LangChain. */
export type DefaultModelGiven = DefaultModelLike | LanguageModelLike | ChatModelLike;

function defaultModelOf(given: DefaultModelGiven, whose: string): DefaultModelLike {
  if (given instanceof TunedModel) {
    const hint = 'leave defaultModel out: the policy then answers for the role while it is not trained';
    throw invalid(`${whose}: its default model is the model in training`, hint);
  }
  if (typeof given === 'object' && given !== null && 'doGenerate' in given) {
    return { name: given.modelId, generate: async (request) => answerOf(await given.doGenerate(optionsOf(request) as never)) };
  }
  if (typeof given === 'object' && given !== null && '_llmType' in given) {
    const { model = given._llmType() } = given as { readonly model?: string };
    return { name: model, generate: async (request) => answerOf(await said(given, request)) };
  }
  checkDefaultModel(given, whose);
  return given;
}

/** A LangChain chat model keeps its own sampling settings: only its constructor takes them. */
async function said(model: ChatModelLike, { messages, tools, tool, stop, signal }: DefaultModelRequest) {
  const bound =
    tools.length === 0
      ? model
      : model.bindTools?.(tools as never, defined({ tool_choice: tool === true ? 'any' : tool }) as never);
  if (bound === undefined) throw invalid(`the default model ${model._llmType()} has no bindTools, and the request has tools`);
  const options = defined({ stop: stop?.length === 0 ? undefined : stop, signal });
  const given = messages.map(({ content, ...message }) => ({ ...message, content: content ?? '' }));
  const reply = (await (bound as ChatModelLike).invoke(given as never, options as never)) as ChatReply;
  const { content, tool_calls = [], invalid_tool_calls = [], response_metadata: { finish_reason, stop_reason } = {} } = reply;
  const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content;
  const called = [...tool_calls, ...invalid_tool_calls].map(({ name = '', args }) => {
    return { type: 'tool-call', toolName: name, input: typeof args === 'string' ? args : JSON.stringify(args) };
  });
  return { content: [...parts, ...called], finishReason: stop_reason === 'max_tokens' ? 'length' : finish_reason };
}

interface ChatReply {
  readonly content: string | readonly AnswerPart[];
  readonly tool_calls?: readonly { readonly name: string; readonly args: unknown }[];
  /** Calls whose arguments are not JSON, as text. */
  readonly invalid_tool_calls?: readonly { readonly name?: string; readonly args?: string }[];
  readonly response_metadata?: { readonly finish_reason?: string; readonly stop_reason?: string };
}

function optionsOf({ messages, tools, tool, stop, sampling, signal }: DefaultModelRequest): object {
  const names = new Map(messages.flatMap(({ tool_calls = [] }) => tool_calls.map((call) => [call.id, call.function.name])));
  return {
    prompt: messages.map((message) => promptEntry(message, names)),
    tools: tools.map(({ function: { name, description, parameters } }) =>
      defined({ type: 'function', name, description, inputSchema: parameters ?? { type: 'object', properties: {} } }),
    ),
    ...defined({
      toolChoice: tool === true ? { type: 'required' } : tool && { type: 'tool', toolName: tool },
      stopSequences: stop?.length === 0 ? undefined : stop,
      temperature: sampling.temperature,
      topP: sampling.topP,
      maxOutputTokens: sampling.maxTokens,
    }),
    abortSignal: signal,
  };
}

function promptEntry(message: Message, toolNames: ReadonlyMap<string, string>): object {
  const { role, content, tool_calls: calls = [], tool_call_id: toolCallId = '' } = message;
  const text = content === null || content === '' ? [] : [{ type: 'text', text: content }];
  if (role === 'system') return { role, content: content ?? '' };
  if (role === 'user') return { role, content: text };
  if (role === 'assistant') return { role, content: [...text, ...calls.map(callPart)] };
  const output = { type: 'text', value: content ?? '' };
  return { role, content: [{ type: 'tool-result', toolCallId, toolName: toolNames.get(toolCallId) ?? '', output }] };
}

/** Arguments that are not JSON are passed on verbatim. */
function callPart({ id, function: { name, arguments: text } }: ToolCall): object {
  const { input = text } = { input: parsedJson(text) };
  return { type: 'tool-call', toolCallId: id, toolName: name, input };
}

interface AnswerPart {
  readonly type: string;
  readonly text?: string;
  readonly toolName?: string;
  readonly input?: string;
}

function answerOf(result: Awaited<ReturnType<LanguageModelLike['doGenerate']>>): DefaultModelAnswer {
  const parts = result.content as readonly AnswerPart[];
  const text = parts.flatMap((part) => (part.type === 'text' ? (part.text ?? '') : [])).join('');
  const calls = parts.filter(({ type }) => type === 'tool-call');
  const toolCalls = calls.map(({ toolName = '', input = '{}' }) => ({ name: toolName, arguments: input }));
  const reason = result.finishReason as string | { readonly unified?: string } | undefined;
  const isCut = (typeof reason === 'string' ? reason : reason?.unified) === 'length';
  return {
    content: text === '' && calls.length > 0 ? null : text,
    stopReason: isCut ? 'length' : 'stop',
    ...(calls.length === 0 ? {} : { toolCalls }),
  };
}
