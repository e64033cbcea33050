/**
 * A default model from whatever a developer has: an OpenAI-compatible server, a function, or a default model already.
 *
 * Never calls the policy, and knows nothing of sessions: the gateway asks it and records what it says.
 */
import { type ChatServer, chatAnswerIn, chatRequest } from '../core/chat-completions.ts';
import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from '../core/default-model.ts';
import { TrainyardError } from '../core/errors.ts';

export function defaultModelOf(given: DefaultModelLike): DefaultModel {
  if (typeof given === 'function') {
    // A function in `{ default: () => … }` has the name of its field.
    const name = given.name === '' || given.name === 'default' ? 'function' : given.name;
    return { name, generate: async (request) => answerOf(await given(request)) };
  }
  // What has both is a model handle: its server takes everything that a default model is asked.
  return 'baseURL' in given ? overHttp(given) : given;
}

function answerOf(given: string | DefaultModelAnswer): DefaultModelAnswer {
  return typeof given === 'string' ? { content: given } : given;
}

interface Server extends ChatServer {
  readonly fetch?: typeof globalThis.fetch;
}

function overHttp(server: Server): DefaultModel {
  return { name: server.name, generate: (request) => askServer(server, request) };
}

async function askServer(server: Server, { sampling, ...asked }: DefaultModelRequest): Promise<DefaultModelAnswer> {
  const { name, fetch = globalThis.fetch } = server;
  // OpenAI's own servers know no top_k, and refuse what they do not know.
  const { topK: _, ...known } = sampling;
  const response = await fetch(...chatRequest(server, { ...asked, ...known }));
  const text = await response.text();
  if (!response.ok) throw failed(name, `answered ${response.status}: ${text.slice(0, 500)}`);
  const answer = chatAnswerIn(text);
  if (answer === undefined) throw failed(name, `answered something that is no completion: ${text.slice(0, 200)}`);
  const { content, stopReason } = answer;
  const toolCalls = answer.toolCalls.map((call) => call.function);
  return { content, stopReason, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
}

function failed(name: string, what: string): TrainyardError {
  return new TrainyardError('DEFAULT_MODEL_FAILED', `default model ${name} ${what}`);
}
