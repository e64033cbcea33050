/**
 * The door to somebody else's policy: a model handle over HTTP, for one rollout. Every call says which rollout and which conversation it
 * belongs to; what was said is remembered for the grader. Tokens are recorded where the policy is, not here.
 */
import { linkSignals } from '../core/async.ts';
import type { ModelHandle, SeatOptions } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { httpModel } from '../gateway/http-model.ts';
import { GATEWAY_LIMITS } from '../gateway/wire-protocol.ts';
import { isWhole, type RecordedCall, recordedCall, routeOf } from './recorded-call.ts';

/** What the policy is called on the wire, whichever it is. */
export const POLICY_NAME = 'osmosis-rollout';
const HEADER_VALUE = /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/;

export interface RemotePolicyParts {
  /** As it came: with or without `/chat/completions`. */
  readonly url: string;
  readonly apiKey: string | null;
  readonly rolloutId: string;
  readonly fetch: typeof globalThis.fetch;
  /** Ends every call. */
  readonly signal: AbortSignal;
}

export interface ThreadCall extends RecordedCall {
  readonly role: string;
  readonly thread: string;
}

export class RemotePolicy {
  readonly #parts: RemotePolicyParts;
  readonly #baseURL: string;
  readonly #calls: ThreadCall[] = [];
  readonly #end = new AbortController();

  constructor(parts: RemotePolicyParts) {
    this.#parts = parts;
    this.#baseURL = parts.url.replace(/\/+$/, '').replace(/\/chat\/completions$/, '');
  }

  /** Answered calls, in the order of their answers. */
  get calls(): readonly ThreadCall[] {
    return this.#calls;
  }

  /** The rollout is over: what its code still asks is refused, what is under way is cut and not recorded. */
  seal(): void {
    this.#end.abort(new TrainyardError('SESSION_SEALED', `rollout ${this.#parts.rolloutId} has ended`));
  }

  readonly model = (role = 'default', options?: SeatOptions): ModelHandle => {
    if (options?.default !== undefined && options.trainable?.() === false) throw noDefaultModels(role);
    return this.#handle(role, role);
  };

  #handle(role: string, thread: string): ModelHandle {
    if (!HEADER_VALUE.test(thread) || thread.length > GATEWAY_LIMITS.sampleIdLength) {
      throw new TrainyardError(
        'REQUEST_INVALID',
        `thread ${JSON.stringify(thread.slice(0, 100))} cannot be sent as x-sample-id`,
        {
          hint: `give it a name of 1 to ${GATEWAY_LIMITS.sampleIdLength} printable ASCII characters`,
        },
      );
    }
    const seat = { role, name: POLICY_NAME, baseURL: this.#baseURL, apiKey: this.#parts.apiKey ?? '' };
    const model = httpModel(seat, (own) => this.#fetchAs(role, own), thread);
    return { ...model, thread: (name) => this.#handle(role, name) };
  }

  #headers(thread: string): Record<string, string> {
    return { 'x-rollout-id': this.#parts.rolloutId, 'x-sample-id': thread };
  }

  #fetchAs(role: string, thread: string): typeof globalThis.fetch {
    const { origin } = new URL(this.#baseURL);
    return async (input, init) => {
      const request = new Request(input, init);
      const url = new URL(request.url);
      if (url.origin !== origin) return await this.#parts.fetch(request);
      for (const [name, value] of Object.entries(this.#headers(thread))) request.headers.set(name, value);
      const route = request.method === 'POST' ? routeOf(url.pathname) : undefined;
      const body = route === undefined ? undefined : await request.clone().text();
      const { signal, release } = linkSignals(request.signal, this.#parts.signal, this.#end.signal);
      try {
        signal.throwIfAborted();
        const response = await this.#parts.fetch(new Request(request, { signal }));
        if (route === undefined || body === undefined || !response.ok || response.body === null) return response;
        return listened(response, (text, isStream) => {
          const call = recordedCall(route, body, text, isStream);
          if (call !== undefined && !signal.aborted) this.#calls.push({ ...call, role, thread });
        });
      } catch (thrown) {
        release();
        throw thrown;
      }
    };
  }
}

/** The same response; `heard` is told its text once the client has got all of it. */
function listened(response: Response, heard: (text: string, isStream: boolean) => void): Response {
  const isStream = response.headers.get('content-type')?.startsWith('text/event-stream') ?? false;
  const decoder = new TextDecoder();
  let text = '';
  let isTold = false;
  const tell = (): void => {
    if (isTold) return;
    isTold = true;
    heard(text, isStream);
  };
  const ear = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform: (chunk, controller) => {
      if (text.length < GATEWAY_LIMITS.bodyBytes) text += decoder.decode(chunk, { stream: true });
      if (isStream && isWhole(text)) tell();
      controller.enqueue(chunk);
    },
    flush: tell,
  });
  const { status, statusText, headers } = response;
  return new Response(response.body!.pipeThrough(ear), { status, statusText, headers });
}

export function noDefaultModels(role: string): TrainyardError {
  return new TrainyardError(
    'WORKFLOW_INVALID',
    `role ${JSON.stringify(role)} is played by a default model, and on a rollout server every role is played by the controller's policy`,
    { hint: 'train the role, or let the workflow call that model by itself' },
  );
}
