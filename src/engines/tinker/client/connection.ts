/**
 * A connection to a Tinker server: a session kept alive by heartbeats, and requests whose results are futures. It handles every documented
 * outcome of a future; `http-client.ts` handles unreachable servers. A request is sent when `submit` is called and accepted when it
 * resolves; callers are responsible for the order. A failed heartbeat is harmless: a session that the server has forgotten shows when it is
 * next used.
 */
import { linkSignals } from '../../../core/async.ts';
import { TrainyardError } from '../../../core/errors.ts';
import type { Json } from '../../../core/types.ts';
import { readAs, WireError } from '../wire/codec.ts';
import * as wire from '../wire/tinker-messages.ts';
import { type ConnectionSettings, HttpClient, isLost, jsonIn, lost, pause, type ServerReply } from './http-client.ts';

const SUBMIT_TIMEOUT_MS = 60_000;
const MENTION_TIMEOUT_MS = 10_000;
const HEARTBEAT_MS = 10_000;
/** For the first contact: an unreachable server is more likely a wrong address than a restart. */
const FIRST_PATIENCE_MS = 10_000;
/** Longest wait for a poll on one socket. */
const POLL_TIMEOUT_MS = 45_000;
/** Longest wait for one future that only ever reports "not yet". */
const LONGEST_RESULT_MS = 30 * 60_000;
const RESUBMISSIONS = 2;
const BAD_REQUESTS = 3;
/** Pause between polls that the server answers at once: first and longest. */
const PAUSE_MS = [20, 1000] as const;
/** Servers use it to recognize known clients. */
const SDK_VERSION = '0.36.0';

export interface Submission {
  readonly verb: string;
  /** The request type in the wire's headers. Default: the verb in PascalCase. */
  readonly requestType?: string;
  readonly purpose: 'sample' | 'train';
  /** A Uint8Array is protobuf, a string is JSON text; anything else is sent as JSON. */
  readonly body: Uint8Array | string | object;
  /** False if the server would execute the request twice if it arrived twice. */
  readonly repeatable: boolean;
  /** Only tests whether the server understands the request, so status 500 counts as an answer. */
  readonly isTrial?: boolean;
  readonly signal?: AbortSignal | undefined;
}

/** How the server accepts passes. JSON is for servers without protobuf. */
export type PassFormat = 'protobuf' | 'json';

export type Payload =
  | { readonly kind: 'json'; readonly value: unknown }
  | { readonly kind: 'protobuf'; readonly bytes: Uint8Array };

/** An error here is a 400, which is retried because a proxy may have caused it. */
type PollOutcome = Payload | 'not yet' | 'large' | 'forgotten' | TrainyardError;

export interface Accepted {
  readonly reply: unknown;
  /** Call at most once. */
  result(): Promise<Payload>;
}

type Send = (signal: AbortSignal) => Promise<{ readonly id: string; readonly reply: unknown }>;

export class TinkerConnection implements AsyncDisposable {
  /** Determined by the first pass. */
  passFormat: PassFormat | undefined;
  readonly #http: HttpClient;
  readonly #closing = new AbortController();
  /** Aborts when the connection closes, or with the signal it was opened with. */
  readonly #life: ReturnType<typeof linkSignals>;
  #heartbeat: NodeJS.Timeout | undefined;
  #config: wire.ClientConfigReply = readAs(wire.clientConfigReply, {});
  /** Futures still awaited. A future id that occurs twice would give two requests the same result. */
  readonly #awaited = new Set<string>();
  #sessionId = '';
  #samplingSessions = 0;
  #models = 0;

  static async open(settings: ConnectionSettings): Promise<TinkerConnection> {
    const connection = new TinkerConnection(settings);
    try {
      await connection.#greet(Math.min(settings.patienceMs ?? FIRST_PATIENCE_MS, FIRST_PATIENCE_MS));
      await connection.renew();
    } catch (thrown) {
      await connection[Symbol.asyncDispose]();
      throw thrown;
    }
    connection.#heartbeat = setInterval(() => void connection.#beat(), HEARTBEAT_MS).unref();
    return connection;
  }

  private constructor(settings: ConnectionSettings) {
    this.#http = new HttpClient(settings);
    this.#life = linkSignals(this.#closing.signal, ...(settings.signal ? [settings.signal] : []));
  }

  get sessionId(): string {
    return this.#sessionId;
  }

  get address(): string {
    return this.#http.address;
  }

  /** The server's size limits, or the defaults of the hosted service's clients. */
  get config(): wire.ClientConfigReply {
    return this.#config;
  }

  /**
   * `tokenizerDigest`: SHA-256 of the model's tokenizer.json, if the server reports it. Trainyard's server does. `sizes`: those of a server that
   * `trainyard skyrl` started. `keepsPublished`: whether older weights can be sampled, if it says so.
   */
  async capabilities() {
    const verb = 'get_server_capabilities';
    const request = { method: 'GET', path: verb, pool: 'submit', timeoutMs: SUBMIT_TIMEOUT_MS } as const;
    const reply = this.#checked(await this.#http.ask(request, this.#life.signal), verb);
    const {
      supported_models: models,
      trainyard: sizes,
      keeps_published: keeps,
    } = this.#read(wire.capabilitiesReply, reply, verb);
    const offered = models.flatMap(({ model_name: name, max_context_length: length, tokenizer_sha256: digest }) =>
      name == null ? [] : [{ name, contextLength: length ?? undefined, tokenizerDigest: digest ?? undefined }],
    );
    return { offered, sizes: sizes ?? undefined, keepsPublished: sizes?.keeps_published ?? keeps ?? undefined };
  }

  async createSamplingSession(source: { readonly baseModel: string } | { readonly path: string }): Promise<string> {
    const type = 'create_sampling_session';
    const from = 'path' in source ? { model_path: source.path } : { base_model: source.baseModel };
    const reply = await this.inSession(() => {
      const sampling_session_seq_id = this.nextSamplingSession();
      return this.post(type, { session_id: this.#sessionId, sampling_session_seq_id, ...from, type });
    });
    return this.#read(wire.createSamplingSessionReply, reply, type).sampling_session_id;
  }

  /** Opens a new session. */
  async renew(): Promise<void> {
    const type = 'create_session';
    const reply = await this.post(type, { tags: ['trainyard'], sdk_version: SDK_VERSION, type }).catch((thrown: unknown) => {
      if (!isLost(thrown)) throw thrown;
      throw new TrainyardError(
        'POLICY_REFUSED',
        `there is no Tinker API at ${this.address}: ${thrown.message}`,
        'check TINKER_BASE_URL',
      );
    });
    this.#sessionId = this.#read(wire.createSessionReply, reply, type).session_id;
  }

  /** Runs `use`, and repeats it once in a new session if the server has forgotten the current one. */
  async inSession<T>(use: () => Promise<T>): Promise<T> {
    try {
      return await use();
    } catch (thrown) {
      if (!isLost(thrown)) throw thrown;
      // The session still exists, so the object that the request refers to is missing.
      if ((await this.#beat())?.status !== 404) throw new TrainyardError('POLICY_REFUSED', thrown.message, { cause: thrown });
      await this.renew();
      return use();
    }
  }

  /** Numbers order the sampling sessions and identify repeats. */
  nextSamplingSession(): number {
    return this.#samplingSessions++;
  }

  nextModel(): number {
    return this.#models++;
  }

  /** For requests that are answered directly, without a future. */
  async post(verb: string, body: Json, patienceMs?: number): Promise<ServerReply> {
    return this.#checked(await this.#http.ask({ ...posted(verb, body), patienceMs }, this.#life.signal), verb);
  }

  /** Sends a request that nothing depends on, once. Undefined if no response came; never throws. */
  async mention(method: 'POST' | 'DELETE', path: string, body?: Json): Promise<ServerReply | undefined> {
    const { signal } = this.#life;
    if (signal.aborted) return undefined;
    const content = body === undefined ? {} : encoded(body);
    const request = { ...content, method, path, pool: 'control', timeoutMs: MENTION_TIMEOUT_MS } as const;
    const answer = await this.#http.exchange(request, signal).catch(() => undefined);
    return answer && 'status' in answer ? answer : undefined;
  }

  async submit(submission: Submission): Promise<Accepted> {
    const { verb, repeatable, isTrial } = submission;
    const request = { ...posted(verb, submission.body), repeatable, isTrial };
    const send: Send = async (signal) => {
      const reply = this.#checked(await this.#http.ask(request, signal), verb);
      return { id: this.#read(wire.futureReply, reply, verb).request_id, reply: jsonIn(reply.body) };
    };
    using linked = this.#linked(submission.signal);
    const { id, reply } = await send(linked.signal);
    return { reply, result: () => this.#onlyResult(submission, id, send) };
  }

  /** Turns a WireError thrown by `read` into POLICY_GARBLED. */
  async decode<T>(verb: string, read: () => T | Promise<T>): Promise<T> {
    try {
      return await read();
    } catch (thrown) {
      throw this.#garbled(verb, thrown);
    }
  }

  /** Stops heartbeats and closes sockets. Calls in flight reject with CANCELLED. Idempotent. */
  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#heartbeat);
    this.#closing.abort();
    this.#life.release();
    this.#http.close();
  }

  async #greet(patienceMs: number): Promise<void> {
    try {
      const reply = await this.post('client/config', { sdk_version: SDK_VERSION }, patienceMs);
      this.#config = this.#read(wire.clientConfigReply, reply, 'client/config');
    } catch (thrown) {
      // Older servers answer 404; the defaults apply then.
      if (!isLost(thrown)) throw thrown;
    }
  }

  async #onlyResult(submission: Submission, firstId: string, send: Send): Promise<Payload> {
    const { verb, purpose, repeatable, signal } = submission;
    if (this.#awaited.has(firstId)) throw this.#notTinker(`the reply to ${verb} names the future of another request`);
    this.#awaited.add(firstId);
    using linked = this.#linked(signal);
    let id = firstId;
    const resubmit = async (): Promise<string> => {
      if (!repeatable) throw lost(`the server has forgotten ${verb}, and may do it again if it is asked again`);
      id = (await send(linked.signal)).id;
      return id;
    };
    try {
      return await this.#poll(submission, id, resubmit, linked.signal);
    } catch (thrown) {
      if (purpose === 'sample' && linked.signal.aborted) void this.mention('POST', 'cancel_future', { request_id: id });
      throw thrown;
    } finally {
      this.#awaited.delete(firstId);
    }
  }

  /**
   * Polls a future until its result is ready. If the server has forgotten it, the same request is sent again, at most twice. Body and
   * `seq_id` stay the same, so a server that already did the work returns its result instead of doing it again.
   */
  async #poll(
    { verb, purpose, requestType = pascalCase(verb) }: Submission,
    firstId: string,
    resubmit: () => Promise<string>,
    signal: AbortSignal,
  ): Promise<Payload> {
    const until = performance.now() + LONGEST_RESULT_MS;
    const left = { resubmissions: RESUBMISSIONS, badRequests: BAD_REQUESTS };
    const path = 'retrieve_future';
    const name = `retrieve_future of ${verb}`;
    let id = firstId;
    let metadataOnly = true;
    let wait: number = PAUSE_MS[0];
    for (let iteration = 0; ; iteration++) {
      const began = performance.now();
      const headers = { ...POLL_HEADERS, 'x-tinker-request-iteration': String(iteration), 'x-tinker-request-type': requestType };
      const body = Buffer.from(JSON.stringify({ request_id: id, allow_metadata_only: metadataOnly }));
      const poll = { method: 'POST', path, name, pool: purpose, timeoutMs: POLL_TIMEOUT_MS, body, headers } as const;
      const reply = await this.#http.ask({ ...poll, longPoll: true }, signal);
      const outcome = this.#outcomeOf(reply, verb, purpose);
      if (typeof outcome === 'object' && 'kind' in outcome) return outcome;
      if (outcome === 'large') {
        if (!metadataOnly) throw this.#http.errors.garbled(reply, verb, 'metadata, where the whole result was asked for');
        metadataOnly = false;
        continue;
      }
      if (outcome === 'forgotten') {
        if (left.resubmissions-- === 0) throw this.#http.errors.ofStatus(reply, verb);
        id = await resubmit();
        continue;
      }
      if (outcome instanceof TrainyardError && left.badRequests-- === 0) throw outcome;
      if (performance.now() > until) throw waitedTooLong(verb);
      if (performance.now() - began >= PAUSE_MS[1]) continue;
      await pause(wait, signal);
      wait = Math.min(wait * 2, PAUSE_MS[1]);
    }
  }

  #outcomeOf(reply: ServerReply, verb: string, purpose: Submission['purpose']): PollOutcome {
    const { errors } = this.#http;
    const { status, contentType, body } = reply;
    if (status < 300 && contentType.includes(wire.PROTOBUF)) return { kind: 'protobuf', bytes: body };
    const value = jsonIn(body);
    if (status === 408) return 'not yet';
    if (status === 410 || (status === 404 && value !== undefined)) return 'forgotten';
    if (status >= 300) {
      const error = errors.ofStatus(reply, verb);
      if (status === 400 && error.code === 'POLICY_REFUSED') return error;
      throw error;
    }
    if (typeof value !== 'object' || value === null) throw errors.garbled(reply, verb);
    if (wire.tryAgainReply.safeParse(value).success) return 'not yet';
    if (wire.completeMetadataReply.safeParse(value).success) return 'large';
    const failed = wire.failedReply.safeParse(value);
    if (!failed.success) return { kind: 'json', value };
    throw errors.ofFailure(failed.data, verb, purpose === 'sample' ? 'ENGINE_FAILED' : 'TRAINER_FAILED');
  }

  #checked(reply: ServerReply, verb: string): ServerReply {
    if (reply.status >= 300) throw this.#http.errors.ofStatus(reply, verb);
    return reply;
  }

  #read<T>(schema: Parameters<typeof readAs<T>>[0], reply: ServerReply, verb: string): T {
    const value = jsonIn(reply.body);
    if (value === undefined) throw this.#http.errors.garbled(reply, verb);
    try {
      return readAs(schema, value);
    } catch (thrown) {
      throw this.#garbled(verb, thrown);
    }
  }

  #garbled(verb: string, thrown: unknown): unknown {
    if (!(thrown instanceof WireError)) return thrown;
    return this.#notTinker(`the reply to ${verb} cannot be used: ${this.#http.errors.quote(thrown.message, 300)}`, thrown);
  }

  #notTinker(found: string, cause?: unknown): TrainyardError {
    return new TrainyardError('POLICY_GARBLED', found, {
      hint: `check that ${this.address} is a Tinker server, and its version`,
      cause,
    });
  }

  #linked(signal: AbortSignal | undefined) {
    return linkSignals(this.#life.signal, ...(signal ? [signal] : []));
  }

  async #beat(): Promise<ServerReply | undefined> {
    return this.mention('POST', 'session_heartbeat', { session_id: this.#sessionId, type: 'session_heartbeat' });
  }
}

function posted(verb: string, body: Submission['body'] | Json) {
  return { ...encoded(body), method: 'POST', path: verb, pool: 'submit', timeoutMs: SUBMIT_TIMEOUT_MS } as const;
}

function encoded(body: Submission['body'] | Json) {
  if (body instanceof Uint8Array) return { headers: { 'content-type': wire.PROTOBUF }, body };
  return {
    headers: { 'content-type': 'application/json' },
    body: Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)),
  };
}

const POLL_HEADERS = { 'content-type': 'application/json', accept: `${wire.PROTOBUF}, application/json` };

function waitedTooLong(verb: string): TrainyardError {
  const minutes = LONGEST_RESULT_MS / 60_000;
  return new TrainyardError(
    'POLICY_UNREACHABLE',
    `the server has not finished ${verb} within ${minutes} minutes`,
    'look at what the server is doing; a smaller batch takes less time',
  );
}

/** `optim_step` becomes OptimStep. */
function pascalCase(verb: string): string {
  return verb.replaceAll(/(?:^|_)(\w)/g, (_, letter: string) => letter.toUpperCase());
}
