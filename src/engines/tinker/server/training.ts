/**
 * Sessions, the models they train and the sampling sessions they open, with the routes for sessions, models and a model's verbs. All of
 * this lives in memory and ends with the process; saved weights do not. A session that stays silent for too long is ended together with its
 * models and samples.
 */
import { randomBytes } from 'node:crypto';
import type { z } from 'zod';
import type { Clock } from '../../../core/contracts.ts';
import { type HttpReply, jsonReply } from '../../../http/message.ts';
import { readAs } from '../wire/codec.ts';
import { decodePassHead, decodePassRequest } from '../wire/protobuf.ts';
import { passRequestFromJson } from '../wire/tinker-json.ts';
import * as wire from '../wire/tinker-messages.ts';
import { TINKER_LIMITS, type Waits } from './limits.ts';
import {
  type Body,
  type Future,
  type Futures,
  failureIn,
  futureReply,
  invalid,
  jsonOf,
  Numbered,
  type Route,
  type Routes,
  readBody,
  readRequest,
  refused,
} from './requests.ts';
import { Model, type Sent } from './training-model.ts';
import { type BaseModel, checkBaseModel, type Weights, type WeightsFolder } from './weights.ts';

interface Session {
  readonly id: string;
  readonly models: Numbered<{ readonly future: Future; readonly model: Model }>;
  readonly samplers: Numbered<Sampler>;
  seenAt: number;
}

/** A sampling session: bound to one set of weights for good. */
interface Sampler {
  readonly id: string;
  readonly sessionId: string;
  /** The tinker:// path of its weights. Undefined for base or unnamed weights. */
  readonly path: string | undefined;
  readonly weights: Weights;
  readonly samples: Numbered<Future>;
}

const MOST_SAMPLES = 20_000;
const MOST_MADE = 10_000;

export class Sessions {
  readonly models = new Map<string, Model>();
  readonly #clock: Clock;
  readonly #waits: Waits;
  readonly #sessions = new Map<string, Session>();
  readonly #samplers = new Map<string, Sampler>();

  constructor(clock: Clock, waits: Waits) {
    this.#clock = clock;
    this.#waits = waits;
  }

  create(): Session {
    const session: Session = {
      id: newId('s'),
      models: new Numbered('model_seq_id', MOST_MADE),
      samplers: new Numbered('sampling_session_seq_id', MOST_MADE),
      seenAt: this.#clock.now(),
    };
    this.#sessions.set(session.id, session);
    return session;
  }

  /** Counts as a sign of life, as do `model` and `sampler`. */
  session(id: string): Session {
    this.touch(id);
    return this.#sessions.get(id) ?? unknown('session', id);
  }

  model(id: string): Model {
    const model = this.models.get(id) ?? unknown('model', id);
    this.touch(model.sessionId);
    return model;
  }

  sampler(id: string): Sampler {
    const sampler = this.#samplers.get(id) ?? unknown('sampling session', id);
    this.touch(sampler.sessionId);
    return sampler;
  }

  addSampler({ id: sessionId }: Session, path: string | undefined, weights: Weights): Sampler {
    const sampler: Sampler = { id: newId('p'), sessionId, path, weights, samples: new Numbered('seq_id', MOST_SAMPLES) };
    this.#samplers.set(sampler.id, sampler);
    return sampler;
  }

  idsOf(sessionId: string): { readonly models: readonly string[]; readonly samplers: readonly string[] } {
    const ids = (all: Iterable<Model | Sampler>) => [...all].filter((one) => one.sessionId === sessionId).map(({ id }) => id);
    return { models: ids(this.models.values()), samplers: ids(this.#samplers.values()) };
  }

  /** Forgets a session, cancels its samples and closes its models. Saved weights stay. */
  end(id: string, why: string): void {
    this.#sessions.delete(id);
    for (const model of this.models.values()) {
      if (model.sessionId !== id) continue;
      this.models.delete(model.id);
      void model.close(why);
    }
    for (const sampler of this.#samplers.values()) {
      if (sampler.sessionId !== id) continue;
      this.#samplers.delete(sampler.id);
      for (const { what: future } of sampler.samples.made.values()) future.cancel();
    }
  }

  endIdle(): void {
    const oldest = this.#clock.now() - this.#waits.session;
    for (const { id, seenAt } of this.#sessions.values()) if (seenAt < oldest) this.end(id, 'its session gave no sign of life');
  }

  /** Ends the silent session with models that has been silent longest, if there is one. */
  endSilent(): void {
    const sessions = [...this.models.values()].map(({ sessionId }) => this.#sessions.get(sessionId)!);
    const [longest] = sessions.filter(({ id }) => this.isSilent(id)).toSorted((a, b) => a.seenAt - b.seenAt);
    if (longest !== undefined) this.end(longest.id, 'its session gave no sign of life, and others needed the room');
  }

  /** Whether its client is probably gone. */
  isSilent(id: string): boolean {
    return this.#clock.now() - (this.#sessions.get(id)?.seenAt ?? Number.POSITIVE_INFINITY) > this.#waits.silence;
  }

  /** Records a sign of life if the session still exists. */
  touch(id: string | undefined): void {
    const session = this.#sessions.get(id ?? '');
    if (session !== undefined) session.seenAt = this.#clock.now();
  }
}

function newId(prefix: string): string {
  return `${prefix}-${randomBytes(9).toString('hex')}`;
}

const UNKNOWN = {
  session: ['unknown_session', 'session_id'],
  model: ['unknown_model', 'model_id'],
  'sampling session': ['unknown_sampler', 'sampling_session_id'],
} as const;

function unknown(what: keyof typeof UNKNOWN, id: string): never {
  const [code, param] = UNKNOWN[what];
  throw refused(code, `there is no ${what} ${JSON.stringify(id.slice(0, 80))}`, {
    hint: 'it ended, or the server was started anew; what was saved is still there',
    param,
  });
}

const FULL_PARAMETERS =
  'LoRA settings are accepted, but this server trains all parameters of the model: a rank, a seed or a choice of layers has no effect.';

const CLIENT_CONFIG = {
  pjwt_auth_enabled: false,
  // With parallel chunks, the official client sends the first part of a batch last, and keeps its turn forever if another part is refused.
  parallel_fwdbwd_chunks: false,
  proto_compress_fwdbwd: false,
  // A chunk of this size takes a few milliseconds to read, check and plan. The same thread answers every client.
  fwdbwd_max_chunk_len: 512,
  fwdbwd_max_chunk_bytes_count: 2_000_000,
  sample_max_concurrent_requests: 2000,
  create_model_via_load_weights: false,
  sample_use_retrieve_futures: false,
  custom_loss_server_side: false,
  sample_join_sampling_session: false,
};

export interface ServerParts {
  readonly base: BaseModel;
  readonly sessions: Sessions;
  readonly futures: Futures;
  readonly weights: WeightsFolder;
  readonly gapMs: number;
}

export function trainingRoutes(parts: ServerParts): Routes {
  return { ...sessionRoutes(parts), ...modelRoutes(parts), ...passRoutes(parts), ...verbRoutes(parts) };
}

function sessionRoutes({ sessions, base }: ServerParts): Routes {
  return {
    'GET /healthz': async () => jsonReply(200, { status: 'ok' }),
    'POST /client/config': async () => jsonReply(200, CLIENT_CONFIG),
    'POST /client/dynamic_config': async () =>
      jsonReply(200, { refresh_interval_sec: 300, sample_cancel_enabled: true, sample_cancel_max_batch_size: 64 }),
    /** Ignored, so the body is not even read. */
    'POST /telemetry': async () => jsonReply(200, { status: 'accepted' }),

    'GET /get_server_capabilities': async () => {
      const { name: model_name, tokenizerDigest: tokenizer_sha256 } = base;
      const offer = { model_name, max_context_length: base.shape.contextLength, trainable: true, sampleable: true };
      const says = { full_parameter_training: true, keeps_published: true };
      return jsonReply(200, { supported_models: [{ ...offer, tokenizer_sha256 }], ...says });
    },

    'POST /create_session': async (request) => {
      await readRequest(wire.createSessionRequest, request);
      return jsonReply(200, { type: 'create_session', session_id: sessions.create().id, warning_message: FULL_PARAMETERS });
    },

    'POST /session_heartbeat': async (request) => {
      sessions.session((await readRequest(wire.sessionHeartbeatRequest, request)).session_id);
      return jsonReply(200, { type: 'session_heartbeat' });
    },

    'GET /sessions/{id}': async ({ names: { id = '' } }) => {
      const { models, samplers } = sessions.idsOf(sessions.session(id).id);
      return jsonReply(200, { training_run_ids: models, sampler_ids: samplers });
    },

    'POST /sessions/{id}/finish': async ({ names: { id = '' } }) => {
      sessions.end(sessions.session(id).id, 'its session was finished');
      return jsonReply(200, { status: 'finished' });
    },
  };
}

function modelRoutes(parts: ServerParts): Routes {
  const { base, sessions } = parts;
  return {
    'POST /create_model': async (request) => {
      const body = await readBody(request);
      const asked = readAs(wire.createModelRequest, jsonOf(body));
      const session = sessions.session(asked.session_id);
      checkBaseModel(base, asked.base_model);
      checkOptimizer(asked.optimizer_config);
      const create = () => createModel(parts, session, asked);
      // Without a model_seq_id, every request creates a new model.
      const { future, model } =
        asked.model_seq_id == null ? create() : session.models.take(asked.model_seq_id, body.digest, create);
      const lora_config = asked.lora_config ?? null;
      const made = { model_id: model.id, base_model: base.name, lora_config, full_parameter_training: true, status: 'created' };
      return futureReply(future, made);
    },

    'POST /get_info': async (request) => {
      const { id } = sessions.model((await readRequest(wire.modelRequest, request)).model_id);
      const { name } = base;
      // A client on the same machine can load the tokenizer from this folder.
      const tokenizer_id = base.tokenizer && base.folder;
      return jsonReply(200, {
        type: 'get_info',
        model_id: id,
        status: 'created',
        model_name: name,
        is_lora: false,
        lora_rank: null,
        full_parameter_training: true,
        model_data: { arch: 'llama', model_name: name, base_model: name, tokenizer_id },
      });
    },

    'POST /unload_model': async (request) => {
      const model = sessions.model((await readRequest(wire.modelRequest, request)).model_id);
      const future = model.unload(() => sessions.models.delete(model.id));
      return futureReply(future, { model_id: model.id });
    },
  };
}

function passRoutes({ sessions, futures }: ServerParts): Routes {
  let waitingBytes = 0;
  const passRoute = (forwardOnly: boolean) =>
    inOrder(sessions, forwardOnly ? 'forward' : 'forward_backward', (body, digest) => {
      const { length } = body.bytes;
      if (waitingBytes + length > TINKER_LIMITS.waitingBytes) {
        throw refused('too_busy', `${waitingBytes} bytes of requests wait already`, { hint: 'wait for earlier requests' });
      }
      const request = body.isProtobuf
        ? decodePassRequest(body.bytes)
        : passRequestFromJson(jsonOf(body, TINKER_LIMITS.jsonBytes), forwardOnly);
      const future = sessions.model(request.modelId).pass({ seqId: request.seqId, digest }, request);
      waitingBytes += length;
      void futures.done(future).then(() => (waitingBytes -= length));
      return futureReply(future, { model_id: request.modelId });
    });
  return { 'POST /forward_backward': passRoute(false), 'POST /forward': passRoute(true) };
}

function verbRoutes({ sessions, weights }: ServerParts): Routes {
  type Asked = { readonly model_id: string; readonly seq_id?: number | null | undefined };
  type Start<T> = (model: Model, sent: Sent, asked: T) => Future;
  const verb = <T extends Asked>(name: string, schema: z.ZodType<T>, start: Start<T>): Routes => ({
    [`POST /${name}`]: inOrder(sessions, name, (body, digest) => {
      const asked = readAs(schema, jsonOf(body));
      const model = sessions.model(asked.model_id);
      return futureReply(start(model, { seqId: asked.seq_id ?? undefined, digest }, asked), { model_id: model.id });
    }),
  });
  return {
    ...verb('optim_step', wire.optimStepRequest, (model, sent, { adam_params, optimizer_params }) => {
      checkOptimizer(optimizer_params);
      if (adam_params === undefined) throw invalid('adam_params', 'are missing');
      return model.step(sent, adam_params);
    }),

    ...verb('save_weights', wire.saveWeightsRequest, (model, sent, { path: name, overwrite, user_metadata }) => {
      const path = newPath(model.id, 'weights', name);
      return model.save(sent, path, { overwrite: overwrite ?? false, userMetadata: user_metadata ?? null }, 'save_weights');
    }),

    ...verb('save_weights_for_sampler', wire.saveWeightsForSamplerRequest, (model, sent, { path: name, user_metadata }) => {
      const type = 'save_weights_for_sampler';
      if (name != null) {
        const path = newPath(model.id, 'sampler_weights', name);
        return model.save(sent, path, { overwrite: false, userMetadata: user_metadata ?? null }, type);
      }
      const session = sessions.session(model.sessionId);
      const publish = (found: Weights) => sessions.addSampler(session, undefined, found).id;
      return model.saveUnnamed(sent, (found) => ({ sampling_session_id: publish(found), type }));
    }),

    ...verb('load_weights', wire.loadWeightsRequest, (model, sent, { path: text, optimizer }) => {
      const path = wire.parseWeightsPath(text);
      if (optimizer && path.kind === 'sampler_weights') {
        throw refused('invalid_request', 'sampler_weights have no optimizer state', {
          hint: 'load them without it, or load what save_weights saved',
          param: 'optimizer',
        });
      }
      return model.load(sent, () => weights.pin(path, 'path'), optimizer, text);
    }),
  };
}

/** An unknown verb still takes its place in a model's order. */
export function notOffered(sessions: Sessions): Route {
  return (request) =>
    inOrder(sessions, 'verb', () => {
      throw refused('unknown_route', `${request.method} ${request.path.slice(0, 100)} is not offered here`);
    })(request);
}

/** A request refused for good still uses up its seq_id: clients keep counting, and the next one would wait for it forever. */
function inOrder(sessions: Sessions, verb: string, route: (body: Body, digest: string) => HttpReply): Route {
  return async (request) => {
    const body = await readBody(request);
    // The same body sent to another verb is another request.
    const digest = `${verb} ${body.digest}`;
    try {
      return route(body, digest);
    } catch (thrown) {
      const { status, message } = failureIn(thrown);
      const isTriedAgain = status >= 500 || [408, 409, 429].includes(status);
      const { modelId, seqId } = isTriedAgain ? {} : headOf(body);
      const model = sessions.models.get(String(modelId));
      if (Number.isSafeInteger(seqId) && Number(seqId) >= 1) model?.refused(Number(seqId), digest, verb, message);
      throw thrown;
    }
  };
}

/** Finds model and seq_id in an unreadable body. Of JSON too large to parse, it searches the first and last 1000 bytes. */
function headOf(body: Body) {
  try {
    const { bytes, isProtobuf } = body;
    if (isProtobuf) return decodePassHead(bytes);
    if (bytes.length <= TINKER_LIMITS.jsonBytes) {
      const { model_id: modelId, seq_id: seqId } = jsonOf(body, TINKER_LIMITS.jsonBytes) as Record<string, unknown>;
      return { modelId, seqId };
    }
    const text = Buffer.concat([bytes.subarray(0, 1000), bytes.subarray(-1000)]).toString();
    return { modelId: /"model_id"\s*:\s*"([^"]*)"/.exec(text)?.[1], seqId: Number(/"seq_id"\s*:\s*(\d+)/.exec(text)?.[1]) };
  } catch {
    return {};
  }
}

function createModel(
  { base, sessions, futures, weights, gapMs }: ServerParts,
  session: Session,
  asked: z.infer<typeof wire.createModelRequest>,
) {
  if (sessions.models.size >= TINKER_LIMITS.models) sessions.endSilent();
  if (sessions.models.size >= TINKER_LIMITS.models) {
    throw refused('too_many_models', `there are ${sessions.models.size} models in training, and no more at once`, {
      hint: 'unload a model or finish its session; one without a heartbeat for a minute makes room by itself',
    });
  }
  const id = newId('m');
  const label = { base_model: base.name, lora_rank: asked.lora_config?.rank ?? null, user_metadata: asked.user_metadata ?? null };
  const opened = weights.createRun(id, { ...label, created_at: new Date().toISOString() }).then(base.open);
  const model = new Model({ id, sessionId: session.id, opened, futures, weights, gapMs });
  sessions.models.set(id, model);
  opened.catch(() => sessions.models.delete(id));
  const value = { model_id: id, base_model: base.name, full_parameter_training: true, type: 'create_model' };
  const future = futures.start(() => opened.then(() => ({ kind: 'reply', value })), session.id);
  return { future, model };
}

function checkOptimizer(asked: { readonly type: string } | null | undefined): void {
  const type = asked?.type ?? 'adamw';
  if (type === 'adamw') return;
  const found = `the optimizer is ${JSON.stringify(type.slice(0, 40))}, expected adamw`;
  throw refused('not_offered', found, { param: 'optimizer_config' });
}

/** Makes up a name from the time if none is given. */
function newPath(modelId: string, kind: wire.WeightsKind, given: string | null | undefined): wire.WeightsPath {
  const name = given ?? new Date().toISOString().replaceAll(/\D/g, '');
  wire.checkWeightsName(name, 'path');
  return { modelId, kind, name };
}
