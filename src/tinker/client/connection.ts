/**
 * The connection to a Tinker server: a session that is kept alive, and requests whose results are futures.
 *
 * What is sent is sent again while the server is away, within patience, and every outcome of a future is dealt with (`futures.ts`).
 * Order is the sender's: a request is on its way when `submit` is called and accepted when it resolves. Nothing here knows what is
 * sampled or trained. A heartbeat that fails harms nothing; a session that the server has forgotten shows when it is used.
 */
import type { Downtime } from '../../core/async.ts';
import { linkSignals } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { Json } from '../../core/types.ts';
import { WireError } from '../wire/messages.ts';
import type { ClientConfigReply } from '../wire/verbs.ts';
import {
  capabilitiesReply,
  clientConfigReply,
  createSamplingSessionReply,
  createSessionReply,
  futureReply,
  readAs,
} from '../wire/verbs.ts';
import { Caller } from './caller.ts';
import { type Payload, retrieve } from './futures.ts';
import { ExchangeFailure, type ExchangeRequest, HttpClient, type HttpReply } from './http.ts';
import { Trouble } from './patience.ts';
import { lost, parseJson, Refusals } from './refusals.ts';

const SUBMIT_TIMEOUT_MS = 60_000;
const MENTION_TIMEOUT_MS = 10_000;
const HEARTBEAT_MS = 10_000;
const PATIENCE_MS = 120_000;
/** For a server that was never heard of: more likely a wrong address than a restart. */
const FIRST_PATIENCE_MS = 10_000;
/** What servers use to tell apart the clients they know. */
const SDK_VERSION = '0.36.0';

export interface ConnectionSettings {
  readonly baseURL: string;
  readonly apiKey: string;
  /** Called once when trouble begins and once when it is over. */
  readonly onTrouble?: (message: string) => void;
  /** Runs as long as trouble lasts. */
  readonly downtime?: Downtime | undefined;
  /** How long an unreachable or busy server is waited for. */
  readonly patienceMs?: number;
  readonly signal?: AbortSignal;
}

export interface OfferedModel {
  readonly name: string;
  readonly contextLength: number | undefined;
  /** SHA-256 of its tokenizer.json, where the server tells: Trainyard's does. */
  readonly tokenizerDigest: string | undefined;
}

/** A request whose result is a future. */
export interface Submission {
  readonly verb: string;
  /** As the wire calls it in its headers. */
  readonly requestType: string;
  readonly purpose: 'sample' | 'train';
  readonly body: Uint8Array;
  readonly contentType: string;
  /** False where the server would do it twice if it arrived twice. */
  readonly repeatable: boolean;
  /** To see whether the server understands it at all: an internal error is an answer too. */
  readonly isTrial?: boolean;
  readonly signal?: AbortSignal | undefined;
}

export interface Accepted {
  readonly requestId: string;
  /** What the server said when it accepted the request. */
  readonly reply: unknown;
  /** Once at most. */
  result(): Promise<Payload>;
}

export class TinkerConnection implements AsyncDisposable {
  readonly #http: HttpClient;
  readonly #refusals: Refusals;
  readonly #trouble: Trouble;
  readonly #caller: Caller;
  readonly #greeter: Caller;
  readonly #closing = new AbortController();
  readonly #signal: AbortSignal;
  readonly #releaseSignal: () => void;
  #heartbeat: NodeJS.Timeout | undefined;
  #config: ClientConfigReply = readAs(clientConfigReply, {});
  /** Futures whose results have not come: two requests with one of them would have one result. */
  readonly #awaited = new Set<string>();
  #sessionId = '';
  #samplingSessions = 0;
  #models = 0;

  static async open(settings: ConnectionSettings): Promise<TinkerConnection> {
    const connection = new TinkerConnection(settings);
    try {
      await connection.#greet();
      await connection.renew();
    } catch (thrown) {
      await connection[Symbol.asyncDispose]();
      throw thrown;
    }
    connection.#heartbeat = setInterval(() => void connection.#beat(), HEARTBEAT_MS).unref();
    return connection;
  }

  private constructor({ baseURL, apiKey, onTrouble, downtime, patienceMs = PATIENCE_MS, signal }: ConnectionSettings) {
    this.#http = new HttpClient(baseURL, apiKey);
    this.#refusals = new Refusals(apiKey, this.#http.address);
    this.#trouble = new Trouble(onTrouble ?? (() => undefined), downtime);
    const parts = { http: this.#http, refusals: this.#refusals, trouble: this.#trouble };
    this.#caller = new Caller({ ...parts, patienceMs });
    this.#greeter = new Caller({ ...parts, patienceMs: Math.min(patienceMs, FIRST_PATIENCE_MS) });
    const linked = signal === undefined ? undefined : linkSignals(this.#closing.signal, signal);
    this.#signal = linked?.signal ?? this.#closing.signal;
    this.#releaseSignal = linked?.release ?? (() => undefined);
  }

  get sessionId(): string {
    return this.#sessionId;
  }

  /** The base URL, as it is kept with what was saved at the server. */
  get address(): string {
    return this.#http.address;
  }

  /** What the server says about sizes, or what the hosted service's clients take for granted. */
  get config(): ClientConfigReply {
    return this.#config;
  }

  async supportedModels(): Promise<readonly OfferedModel[]> {
    const path = '/api/v1/get_server_capabilities';
    const request = { method: 'GET', path, pool: 'submit', timeoutMs: SUBMIT_TIMEOUT_MS } as const;
    const reply = await this.#ask(request, 'get_server_capabilities');
    const { supported_models: models } = this.#read(capabilitiesReply, reply, 'get_server_capabilities');
    return models.flatMap(({ model_name: name, max_context_length: length, tokenizer_sha256: digest }) =>
      name == null ? [] : [{ name, contextLength: length ?? undefined, tokenizerDigest: digest ?? undefined }],
    );
  }

  async createSamplingSession(source: { readonly baseModel: string } | { readonly path: string }): Promise<string> {
    const from = 'path' in source ? { model_path: source.path } : { base_model: source.baseModel };
    const create = () =>
      this.post('create_sampling_session', {
        session_id: this.#sessionId,
        sampling_session_seq_id: this.nextSamplingSession(),
        ...from,
        type: 'create_sampling_session',
      });
    const reply = await this.inSession(create);
    return this.#read(createSamplingSessionReply, reply, 'create_sampling_session').sampling_session_id;
  }

  /** A new session, where the server has forgotten the old one. */
  async renew(): Promise<void> {
    const body = { tags: ['trainyard'], sdk_version: SDK_VERSION, type: 'create_session' } as const;
    const reply = await this.post('create_session', body).catch((thrown: unknown) => {
      if (!(thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST')) throw thrown;
      throw new TrainyardError('POLICY_REFUSED', `there is no Tinker API at ${this.address}: ${thrown.message}`, {
        hint: 'check TINKER_BASE_URL',
      });
    });
    const session = this.#read(createSessionReply, reply, 'create_session');
    this.#sessionId = session.session_id;
  }

  /** Runs what needs the session; once more in a new one where the server turns out to have forgotten this one. */
  async inSession<T>(use: () => Promise<T>): Promise<T> {
    try {
      return await use();
    } catch (thrown) {
      if (!(thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST')) throw thrown;
      // The session is there: what is missing is what was asked for.
      if (await this.#isKnown()) throw new TrainyardError('POLICY_REFUSED', thrown.message, { cause: thrown });
      await this.renew();
      return use();
    }
  }

  /** The next number of a sampling session: it orders them, and tells a repetition from a new one. */
  nextSamplingSession(): number {
    return this.#samplingSessions++;
  }

  nextModel(): number {
    return this.#models++;
  }

  /** A request that is answered at once. */
  async post(verb: string, body: Json, caller = this.#caller): Promise<HttpReply> {
    const request = {
      ...jsonBody(body),
      method: 'POST',
      path: `/api/v1/${verb}`,
      pool: 'submit',
      timeoutMs: SUBMIT_TIMEOUT_MS,
    } as const;
    return this.#ask(request, verb, caller);
  }

  /** A request that nothing depends on: tried once. Undefined where no answer came; never throws. */
  async mention(method: 'POST' | 'DELETE', path: string, body?: Json): Promise<HttpReply | undefined> {
    if (this.#signal.aborted) return undefined;
    const request = { ...(body === undefined ? {} : jsonBody(body)), method, path: `/api/v1/${path}`, pool: 'control' } as const;
    const answer = await this.#caller
      .once({ ...request, timeoutMs: MENTION_TIMEOUT_MS }, path, this.#signal)
      .catch(() => undefined);
    return answer instanceof ExchangeFailure ? undefined : answer;
  }

  /** Resolves when the server has accepted the request. */
  async submit(submission: Submission): Promise<Accepted> {
    const reply = await this.#linked(submission.signal, (signal) => this.#send(submission, signal));
    const requestId = this.#read(futureReply, reply, submission.verb).request_id;
    return { requestId, reply: parseJson(reply.body), result: () => this.#onlyResult(submission, requestId) };
  }

  /** Decodes what came; a body that is not what it should be becomes POLICY_GARBLED. */
  async decode<T>(verb: string, read: () => T | Promise<T>): Promise<T> {
    try {
      return await read();
    } catch (thrown) {
      throw thrown instanceof WireError ? this.#garbled(verb, thrown) : thrown;
    }
  }

  /** Ends heartbeats and sockets; calls in flight reject with CANCELLED. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#heartbeat);
    this.#closing.abort();
    this.#releaseSignal();
    this.#http.close();
  }

  async #greet(): Promise<void> {
    try {
      const reply = await this.post('client/config', { sdk_version: SDK_VERSION }, this.#greeter);
      this.#config = this.#read(clientConfigReply, reply, 'client/config');
    } catch (thrown) {
      // Servers older than this question answer 404: then the defaults hold.
      if (!(thrown instanceof TrainyardError && thrown.code === 'POLICY_LOST')) throw thrown;
    }
  }

  async #onlyResult(submission: Submission, requestId: string): Promise<Payload> {
    if (this.#awaited.has(requestId)) {
      throw new TrainyardError('POLICY_GARBLED', `the reply to ${submission.verb} names the future of another request`, {
        hint: `check that ${this.address} is a Tinker server, and its version`,
      });
    }
    this.#awaited.add(requestId);
    try {
      return await this.#result(submission, requestId);
    } finally {
      this.#awaited.delete(requestId);
    }
  }

  async #result(submission: Submission, requestId: string): Promise<Payload> {
    const { verb, requestType, purpose } = submission;
    let id = requestId;
    try {
      return await this.#linked(submission.signal, (signal) => {
        const resubmit = async (): Promise<string> => {
          if (!submission.repeatable) throw lost(`the server has forgotten ${verb}, and may do it again if it is asked again`);
          id = this.#read(futureReply, await this.#send(submission, signal), verb).request_id;
          return id;
        };
        return retrieve({ caller: this.#caller, refusals: this.#refusals }, { verb, requestType, purpose, resubmit }, id, signal);
      });
    } catch (thrown) {
      if (purpose === 'sample' && thrown instanceof TrainyardError && thrown.code === 'CANCELLED') {
        void this.mention('POST', 'cancel_future', { request_id: id });
      }
      throw thrown;
    }
  }

  async #send({ verb, body, contentType, repeatable, isTrial }: Submission, signal: AbortSignal): Promise<HttpReply> {
    const headers = { 'content-type': contentType };
    const request = {
      method: 'POST',
      path: `/api/v1/${verb}`,
      pool: 'submit',
      timeoutMs: SUBMIT_TIMEOUT_MS,
      headers,
      body,
      alone: !repeatable,
    } as const;
    return this.#checked(await this.#caller.ask(request, verb, { signal, repeatable, isTrial }), verb);
  }

  async #ask(request: ExchangeRequest, verb: string, caller = this.#caller): Promise<HttpReply> {
    return this.#checked(await caller.ask(request, verb, { signal: this.#signal, repeatable: true }), verb);
  }

  #checked(reply: HttpReply, verb: string): HttpReply {
    if (reply.status >= 300) throw this.#refusals.ofStatus(reply, verb);
    return reply;
  }

  #read<T>(schema: Parameters<typeof readAs<T>>[0], reply: HttpReply, verb: string): T {
    const value = parseJson(reply.body);
    if (value === undefined) throw this.#refusals.garbled(reply, verb);
    try {
      return readAs(schema, value);
    } catch (thrown) {
      throw thrown instanceof WireError ? this.#garbled(verb, thrown) : thrown;
    }
  }

  #garbled(verb: string, cause: WireError): TrainyardError {
    return new TrainyardError(
      'POLICY_GARBLED',
      `the reply to ${verb} cannot be used: ${this.#refusals.quote(cause.message, 300)}`,
      {
        hint: `check that ${this.address} is a Tinker server, and its version`,
        cause,
      },
    );
  }

  async #linked<T>(signal: AbortSignal | undefined, use: (signal: AbortSignal) => Promise<T>): Promise<T> {
    if (signal === undefined) return use(this.#signal);
    const linked = linkSignals(signal, this.#signal);
    try {
      return await use(linked.signal);
    } finally {
      linked.release();
    }
  }

  async #beat(): Promise<HttpReply | undefined> {
    return this.mention('POST', 'session_heartbeat', { session_id: this.#sessionId, type: 'session_heartbeat' });
  }

  /** False only where the server says so. */
  async #isKnown(): Promise<boolean> {
    return (await this.#beat())?.status !== 404;
  }
}

function jsonBody(body: Json) {
  return { headers: { 'content-type': 'application/json' }, body: Buffer.from(JSON.stringify(body)) };
}
