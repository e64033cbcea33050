/**
 * Who is there: sessions, the models they train, the sampling sessions they opened; and the routes of sessions. All of it lives in memory and
 * ends with the process; what was saved does not. A session that gives no sign of life for long enough is ended, with its models and samples.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../../core/contracts.ts';
import { jsonReply } from '../../http/message.ts';
import type { Refusal } from '../../http/refusal.ts';
import { createSessionRequest, sessionHeartbeatRequest } from '../wire/tinker-messages.ts';
import { type Future, Numbered } from './futures.ts';
import { type Routes, readRequest, refused, type Waits } from './requests.ts';
import type { BaseModel, Weights } from './weights.ts';

/** What a session needs to know of a model in training. */
export interface SessionModel {
  readonly id: string;
  readonly sessionId: string;
  close(why: string): Promise<void>;
}

export interface Session<M> {
  readonly id: string;
  readonly models: Numbered<{ readonly future: Future; readonly model: M }>;
  readonly samplers: Numbered<Sampler>;
  seenAt: number;
}

/** What is sampled from: one set of weights, for good. */
export interface Sampler {
  readonly id: string;
  readonly sessionId: string;
  /** The tinker:// path of its weights, where they have one. */
  readonly path: string | undefined;
  readonly weights: Weights;
  readonly samples: Numbered<Future>;
}

const MOST_SAMPLES = 20_000;
const MOST_MADE = 10_000;

export class Sessions<M extends SessionModel> {
  readonly #clock: Clock;
  readonly #waits: Waits;
  readonly #sessions = new Map<string, Session<M>>();
  readonly #models = new Map<string, M>();
  readonly #samplers = new Map<string, Sampler>();

  constructor(clock: Clock, waits: Waits) {
    this.#clock = clock;
    this.#waits = waits;
  }

  create(): Session<M> {
    const session: Session<M> = {
      id: newId('s'),
      models: new Numbered('model_seq_id', MOST_MADE),
      samplers: new Numbered('sampling_session_seq_id', MOST_MADE),
      seenAt: this.#clock.now(),
    };
    this.#sessions.set(session.id, session);
    return session;
  }

  /** A sign of life, as are `model` and `sampler`. */
  session(id: string): Session<M> {
    const session = this.#sessions.get(id);
    if (session === undefined) throw unknown('unknown_session', 'session', id, 'session_id');
    session.seenAt = this.#clock.now();
    return session;
  }

  model(id: string): M {
    const model = this.#models.get(id);
    if (model === undefined) throw unknown('unknown_model', 'model', id, 'model_id');
    this.touch(model.sessionId);
    return model;
  }

  sampler(id: string): Sampler {
    const sampler = this.#samplers.get(id);
    if (sampler === undefined) throw unknown('unknown_sampler', 'sampling session', id, 'sampling_session_id');
    this.touch(sampler.sessionId);
    return sampler;
  }

  addModel(model: M): void {
    this.#models.set(model.id, model);
  }

  forgetModel(id: string): void {
    this.#models.delete(id);
  }

  addSampler({ id: sessionId }: Session<M>, path: string | undefined, weights: Weights): Sampler {
    const sampler: Sampler = { id: newId('p'), sessionId, path, weights, samples: new Numbered('seq_id', MOST_SAMPLES) };
    this.#samplers.set(sampler.id, sampler);
    return sampler;
  }

  get models(): readonly M[] {
    return [...this.#models.values()];
  }

  /** Of one session. */
  idsOf(sessionId: string): { readonly models: readonly string[]; readonly samplers: readonly string[] } {
    const ids = (all: Iterable<SessionModel | Sampler>): readonly string[] =>
      [...all].filter((one) => one.sessionId === sessionId).map(({ id }) => id);
    return { models: ids(this.#models.values()), samplers: ids(this.#samplers.values()) };
  }

  /** Forgets a session, cancels its samples and closes its models. What they saved stays. */
  end(id: string, why: string): void {
    this.#sessions.delete(id);
    for (const model of this.models.filter(({ sessionId }) => sessionId === id)) {
      this.#models.delete(model.id);
      void model.close(why);
    }
    for (const sampler of this.#samplers.values()) {
      if (sampler.sessionId !== id) continue;
      this.#samplers.delete(sampler.id);
      for (const { what: future } of sampler.samples.made.values()) future.cancel();
    }
  }

  /** Ends sessions that gave no sign of life. */
  endIdle(): void {
    const oldest = this.#clock.now() - this.#waits.session;
    for (const { id, seenAt } of this.#sessions.values()) if (seenAt < oldest) this.end(id, 'its session gave no sign of life');
  }

  /** Of the sessions with models, ends the one that was silent longest, if one is silent. */
  endSilent(): void {
    const found = this.models.map(({ sessionId }) => this.#sessions.get(sessionId)!).filter(({ id }) => this.isSilent(id));
    const [longest] = found.toSorted((a, b) => a.seenAt - b.seenAt);
    if (longest !== undefined) this.end(longest.id, 'its session gave no sign of life, and others needed the room');
  }

  /** Whether its client is likely gone. */
  isSilent(id: string): boolean {
    return this.#clock.now() - (this.#sessions.get(id)?.seenAt ?? Number.POSITIVE_INFINITY) > this.#waits.silence;
  }

  /** A sign of life, where it is still there. */
  touch(id: string | undefined): void {
    const session = this.#sessions.get(id ?? '');
    if (session !== undefined) session.seenAt = this.#clock.now();
  }
}

export function newId(prefix: string): string {
  return `${prefix}-${randomBytes(9).toString('hex')}`;
}

function unknown(
  code: 'unknown_session' | 'unknown_model' | 'unknown_sampler',
  what: string,
  id: string,
  param: string,
): Refusal {
  return refused(code, `there is no ${what} ${JSON.stringify(id.slice(0, 80))}`, {
    hint: 'it ended, or the server was started anew; what was saved is still there',
    param,
  });
}

// Routes.

const FULL_PARAMETERS =
  'LoRA settings are accepted, but this server trains all parameters of the model: a rank, a seed or a choice of layers has no effect.';

const CLIENT_CONFIG = {
  pjwt_auth_enabled: false,
  // Side by side, the official client sends the first part of a batch last, and never lets go of its turn when another is refused.
  parallel_fwdbwd_chunks: false,
  proto_compress_fwdbwd: false,
  // What takes a few milliseconds to read, check and plan: the same thread answers everyone.
  fwdbwd_max_chunk_len: 512,
  fwdbwd_max_chunk_bytes_count: 2_000_000,
  sample_max_concurrent_requests: 2000,
  create_model_via_load_weights: false,
  sample_use_retrieve_futures: false,
  custom_loss_server_side: false,
  sample_join_sampling_session: false,
};

export function sessionRoutes<M extends SessionModel>(sessions: Sessions<M>, base: BaseModel): Routes {
  return {
    'GET /healthz': async () => jsonReply(200, { status: 'ok' }),
    'POST /client/config': async () => jsonReply(200, CLIENT_CONFIG),
    'POST /client/dynamic_config': async () =>
      jsonReply(200, { refresh_interval_sec: 300, sample_cancel_enabled: true, sample_cancel_max_batch_size: 64 }),
    /** Nothing is done with it, so it is not even read. */
    'POST /telemetry': async () => jsonReply(200, { status: 'accepted' }),

    'GET /get_server_capabilities': async () => {
      const { name: model_name, tokenizerDigest: tokenizer_sha256 } = base;
      const offer = { model_name, max_context_length: base.shape.contextLength, trainable: true, sampleable: true };
      return jsonReply(200, { supported_models: [{ ...offer, tokenizer_sha256 }], full_parameter_training: true });
    },

    'POST /create_session': async (request) => {
      await readRequest(createSessionRequest, request);
      return jsonReply(200, { type: 'create_session', session_id: sessions.create().id, warning_message: FULL_PARAMETERS });
    },

    'POST /session_heartbeat': async (request) => {
      sessions.session((await readRequest(sessionHeartbeatRequest, request)).session_id);
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
