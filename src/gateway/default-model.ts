/**
 * A default model from whatever a developer has: an OpenAI-compatible server, a function, or a default model already.
 *
 * Never calls the policy, and knows nothing of sessions: the gateway asks it and records what it says. A server's key goes to the server that
 * was named, and is in nothing that comes back from here.
 */

import type { DefaultModel, DefaultModelAnswer, DefaultModelLike, DefaultModelRequest } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { type ChatServer, chatAnswerIn, chatRequest, whyUnreachable, withoutKey } from './chat-completions.ts';

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
  // OpenAI's own servers know no top_k, and refuse what they do not know.
  const { topK: _, ...known } = sampling;
  const text = await replyTo(server, ...chatRequest(server, { ...asked, ...known }));
  const answer = chatAnswerIn(text);
  if (answer === undefined) throw failed(server, `answered something that is no completion: ${text.slice(0, 200)}`);
  const { content, stopReason } = answer;
  const toolCalls = answer.toolCalls.map((call) => call.function);
  return { content, stopReason, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
}

/** From the server that was named and no other: a redirect would send the conversation, and maybe the key, to somebody else. */
async function replyTo(server: Server, url: string, init: RequestInit): Promise<string> {
  const { fetch = globalThis.fetch } = server;
  let response: Response;
  let text: string;
  try {
    response = await fetch(url, { ...init, redirect: 'manual' });
    text = withoutKey(await response.text(), server);
  } catch (thrown) {
    // Not as its cause: that quotes what was sent, too.
    throw failed(server, `cannot be reached: ${whyUnreachable(thrown, server)}`);
  }
  const { status, headers } = response;
  if (status >= 300 && status < 400) {
    const target = withoutKey(originIn(headers.get('location'), url), server);
    throw failed(server, `answered ${status}, a redirect to ${target}: redirects are not followed`);
  }
  if (!response.ok) throw failed(server, `answered ${status}: ${text.slice(0, 500)}`);
  return text;
}

function originIn(location: string | null, url: string): string {
  return location !== null && URL.canParse(location, url) ? new URL(location, url).origin : 'nowhere';
}

export function failed({ name }: { readonly name: string }, what: string, cause?: unknown): TrainyardError {
  return new TrainyardError('DEFAULT_MODEL_FAILED', `default model ${name} ${what}`, {
    cause,
    hint: 'check its base URL, key and name, or the function that plays the role',
  });
}
