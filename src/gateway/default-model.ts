/**
 * A default model from whatever a developer has: an OpenAI-compatible server, a function, or a default model already.
 *
 * Never calls the policy, and knows nothing of sessions: the gateway asks it and records what it says.
 */
import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from '../core/default-model.ts';
import { TrainyardError } from '../core/errors.ts';
import type { StopReason, ToolCall } from '../core/types.ts';

export function defaultModelOf(given: DefaultModelLike): DefaultModel {
  if (typeof given === 'function') {
    return { name: given.name || 'function', generate: async (request) => answerOf(await given(request)) };
  }
  // What has both is a model handle: its server takes everything that a default model is asked.
  return 'baseURL' in given ? overHttp(given) : given;
}

function answerOf(given: string | DefaultModelAnswer): DefaultModelAnswer {
  return typeof given === 'string' ? { content: given } : given;
}

interface Server {
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey?: string;
  readonly fetch?: typeof globalThis.fetch;
}

interface Completion {
  readonly choices?: readonly {
    readonly finish_reason?: string;
    readonly message?: { readonly content?: string | null; readonly tool_calls?: readonly Pick<ToolCall, 'function'>[] };
  }[];
}

function overHttp(server: Server): DefaultModel {
  return { name: server.name, generate: (request) => askServer(server, request) };
}

async function askServer(
  { name, baseURL, apiKey, fetch = globalThis.fetch }: Server,
  { messages, tools, tool, stop = [], sampling, signal }: DefaultModelRequest,
): Promise<DefaultModelAnswer> {
  const body = {
    model: name,
    messages,
    ...(tools.length > 0 ? { tools } : {}),
    ...(tool === undefined ? {} : { tool_choice: tool === true ? 'required' : { type: 'function', function: { name: tool } } }),
    ...(stop.length === 0 ? {} : { stop }),
    ...(sampling.temperature === undefined ? {} : { temperature: sampling.temperature }),
    ...(sampling.topP === undefined ? {} : { top_p: sampling.topP }),
    ...(sampling.maxTokens === undefined ? {} : { max_tokens: sampling.maxTokens }),
  };
  const headers = { 'content-type': 'application/json', ...(apiKey === undefined ? {} : { authorization: `Bearer ${apiKey}` }) };
  const url = `${baseURL.replace(/\/+$/, '')}/chat/completions`;
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body), signal });
  const text = await response.text();
  if (!response.ok) throw failed(name, `answered ${response.status}: ${text.slice(0, 500)}`);
  const [choice] = completionOf(name, text).choices ?? [];
  if (choice?.message === undefined) throw failed(name, 'answered without a message');
  const { content = null, tool_calls: calls = [] } = choice.message;
  const stopReason: StopReason = choice.finish_reason === 'length' ? 'length' : 'stop';
  const toolCalls = calls.map((call) => call.function);
  return { content, stopReason, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
}

function completionOf(name: string, text: string): Completion {
  try {
    return JSON.parse(text) as Completion;
  } catch {
    throw failed(name, `answered something that is not JSON: ${text.slice(0, 200)}`);
  }
}

function failed(name: string, what: string): TrainyardError {
  return new TrainyardError('DEFAULT_MODEL_FAILED', `default model ${name} ${what}`);
}
