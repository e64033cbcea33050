/**
 * Models in training: making them, their verbs in order, unloading them. Each verb is answered with a future at once; what it does, it does
 * in the model's order. A model is there before it is open: requests for it wait meanwhile.
 */

import type { z } from 'zod';
import { messageOf } from '../../core/errors.ts';
import type { AdamSettings } from '../../core/policy.ts';
import { type HttpReply, jsonReply } from '../../http/message.ts';
import { readAs } from '../wire/codec.ts';
import { decodePassHead, decodePassRequest } from '../wire/protobuf.ts';
import { passRequestFromJson } from '../wire/tinker-json.ts';
import type { PassRequest } from '../wire/tinker-messages.ts';
import {
  checkWeightsName,
  createModelRequest,
  formatWeightsPath,
  loadWeightsRequest,
  modelRequest,
  optimStepRequest,
  parseWeightsPath,
  saveWeightsForSamplerRequest,
  saveWeightsRequest,
  type WeightsKind,
  type WeightsPath,
} from '../wire/tinker-messages.ts';
import { type Future, type FutureResult, type Futures, futureReply, type OrderedRequest, RequestOrder } from './futures.ts';
import {
  type Body,
  failureIn,
  invalid,
  jsonOf,
  type Route,
  type Routes,
  readBody,
  readRequest,
  refused,
  TINKER_LIMITS,
} from './requests.ts';
import { newId, type Session, type Sessions } from './tinker-sessions.ts';
import { type BrokenPass, TrainingModel } from './training-model.ts';
import { type BaseModel, checkBaseModel, remove, type SaveOptions, type Weights, type WeightsFolder } from './weights.ts';

interface ModelOptions {
  readonly id: string;
  readonly sessionId: string;
  readonly opened: Promise<TrainingModel>;
  readonly futures: Futures;
  readonly folder: WeightsFolder;
  readonly gapMs: number;
}

/** What tells one request from another. */
interface Sent {
  readonly seqId: number | undefined;
  readonly digest: string;
}

interface Unnamed {
  readonly folder: string;
  gone: boolean;
}

export class Model {
  readonly id: string;
  readonly sessionId: string;
  readonly #opened: Promise<TrainingModel>;
  /** Once it is open. */
  #training: TrainingModel | undefined;
  readonly #order: RequestOrder;
  readonly #folder: WeightsFolder;
  /** Sampler weights that nobody named, oldest first. */
  readonly #unnamed: Unnamed[] = [];
  #made = 0;

  constructor({ id, sessionId, opened, futures, folder, gapMs }: ModelOptions) {
    this.id = id;
    this.sessionId = sessionId;
    this.#opened = opened;
    this.#order = new RequestOrder((work) => futures.start(work, sessionId), gapMs);
    this.#folder = folder;
    opened.then((training) => (this.#training = training)).catch(() => undefined);
  }

  pass(sent: Sent, request: PassRequest): Future {
    // Taken now: what the client knew when it sent this.
    const known = this.#training?.knownFailures() ?? new Set();
    return this.#submit('forward_backward', sent, async (training, failure) => ({
      kind: 'pass',
      result: await training.pass(request, failure, known),
    }));
  }

  step(sent: Sent, adam: AdamSettings): Future {
    return this.#submit('optim_step', sent, async (training) => {
      const { gradNorm } = await training.step(adam);
      return { kind: 'reply', value: { metrics: { 'grad_norm:mean': gradNorm } } };
    });
  }

  load(sent: Sent, find: () => Promise<Weights>, optimizer: boolean, path: string): Future {
    return this.#submit('load_weights', sent, async (training, failure) => {
      try {
        await training.load(await find(), optimizer);
      } catch (thrown) {
        training.loadFailed(failure, messageOf(thrown));
        throw thrown;
      }
      return { kind: 'reply', value: { path, model_id: this.id, type: 'load_weights' } };
    });
  }

  /** `type`: the verb's name on the wire. */
  save(sent: Sent, path: WeightsPath, options: SaveOptions, type: string): Future {
    return this.#submit('save_weights', sent, async (training) => {
      await this.#folder.save(path, (dir) => training.save(dir), options);
      return { kind: 'reply', value: { path: formatWeightsPath(path), type } };
    });
  }

  /** Weights without a name, as they are in this turn. The oldest go: a client that wants to keep them names them. */
  saveUnnamed(sent: Sent, use: (weights: Weights) => object): Future {
    return this.#submit('save_weights', sent, async (training) => {
      const { id, folder } = await this.#folder.saveUnnamed(this.id, ++this.#made, (dir) => training.save(dir));
      const kept: Unnamed = { folder, gone: false };
      this.#unnamed.push(kept);
      if (this.#unnamed.length > TINKER_LIMITS.unnamed) await forget(this.#unnamed.shift()!);
      const check = async (): Promise<void> => {
        if (!kept.gone) return;
        throw refused('unknown_sampler', `these weights are gone: of each model the latest ${TINKER_LIMITS.unnamed} are kept`, {
          hint: 'save weights under a name to keep them',
        });
      };
      return { kind: 'reply', value: use({ id, folder, check }) };
    });
  }

  /** After everything that came before. */
  unload(ended: () => void): Future {
    return this.#submit('unload_model', { seqId: undefined, digest: '' }, async () => {
      ended();
      void this.close('the model was unloaded');
      return { kind: 'reply', value: { model_id: this.id, type: 'unload_model' } };
    });
  }

  /** A request that was refused as it came has its place in the order too, and fails there. Whoever sent it is told at once. */
  refused({ seqId, digest }: { readonly seqId: number; readonly digest: string }, verb: string, why: string): void {
    const failure: BrokenPass = { what: `the ${verb} before it (seq_id ${seqId}) was refused`, known: () => true };
    this.#order.skip(seqId, digest, this.#leftBy(verb, failure), why);
  }

  /** Requests that wait fail. */
  async close(why: string): Promise<void> {
    await this.#order.close(why);
    const training = await this.#opened.catch(() => undefined);
    await training?.close();
    for (const kept of this.#unnamed.splice(0)) await forget(kept);
  }

  #submit(verb: string, sent: Sent, run: (training: TrainingModel, failure: BrokenPass) => Promise<FutureResult>): Future {
    const which = sent.seqId === undefined ? '' : ` (seq_id ${sent.seqId})`;
    const failure: BrokenPass = { what: `the ${verb} before it${which} failed`, known: () => future.delivered };
    const future: Future = this.#order.submit({
      ...sent,
      run: async () => run(await this.#opened, failure),
      skipped: this.#leftBy(verb, failure),
    });
    return future;
  }

  /** What a request that was not carried out means for those behind it. */
  #leftBy(verb: string, failure: BrokenPass): OrderedRequest['skipped'] {
    return async (why) => {
      const training = await this.#opened.catch(() => undefined);
      if (verb === 'load_weights') training?.loadFailed(failure, why);
      // Without one of these, the gradient is not what its client thinks.
      if (verb === 'forward_backward' || verb === 'optim_step') training?.breakOff(failure);
    };
  }
}

async function forget(kept: Unnamed): Promise<void> {
  kept.gone = true;
  await remove(kept.folder);
}

// Routes.

export interface TrainingParts {
  readonly base: BaseModel;
  readonly sessions: Sessions<Model>;
  readonly futures: Futures;
  readonly weights: WeightsFolder;
  readonly gapMs: number;
}

export function trainingRoutes(parts: TrainingParts): Routes {
  return { ...modelRoutes(parts), ...passRoutes(parts), ...verbRoutes(parts) };
}

function modelRoutes(parts: TrainingParts): Routes {
  const { base, sessions } = parts;
  return {
    'POST /create_model': async (request) => {
      const body = await readBody(request);
      const asked = readAs(createModelRequest, jsonOf(body));
      const session = sessions.session(asked.session_id);
      checkBaseModel(base, asked.base_model);
      checkOptimizer(asked.optimizer_config);
      const create = () => createModel(parts, session, asked);
      // Without a number of its own, every request is a new model.
      const { future, model } =
        asked.model_seq_id == null ? create() : session.models.take(asked.model_seq_id, body.digest, create);
      const lora_config = asked.lora_config ?? null;
      const made = { model_id: model.id, base_model: base.name, lora_config, full_parameter_training: true, status: 'created' };
      return futureReply(future, made);
    },

    'POST /get_info': async (request) => {
      const { id } = sessions.model((await readRequest(modelRequest, request)).model_id);
      const { name } = base;
      // Where the client runs on the same machine, its tokenizer library finds the files there.
      const tokenizer_id = base.tokenizer && base.folder;
      return jsonReply(200, {
        ...{ type: 'get_info', model_id: id, status: 'created', model_name: name },
        ...{ is_lora: false, lora_rank: null, full_parameter_training: true },
        model_data: { arch: 'llama', model_name: name, base_model: name, tokenizer_id },
      });
    },

    'POST /unload_model': async (request) => {
      const model = sessions.model((await readRequest(modelRequest, request)).model_id);
      const future = model.unload(() => sessions.forgetModel(model.id));
      return futureReply(future, { model_id: model.id });
    },
  };
}

function passRoutes({ sessions, futures }: TrainingParts): Routes {
  let waitingBytes = 0;
  const passRoute = (forwardOnly: boolean): Route =>
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

interface SmallVerb {
  readonly model_id: string;
  readonly seq_id?: number | null | undefined;
}

function verbRoutes({ sessions, weights }: TrainingParts): Routes {
  type Start<T> = (model: Model, sent: Sent, asked: T) => Future;
  const verb = <T extends SmallVerb>(name: string, schema: z.ZodType<T>, start: Start<T>): Routes => ({
    [`POST /${name}`]: inOrder(sessions, name, (body, digest) => {
      const asked = readAs(schema, jsonOf(body));
      const model = sessions.model(asked.model_id);
      return futureReply(start(model, { seqId: asked.seq_id ?? undefined, digest }, asked), { model_id: model.id });
    }),
  });
  return {
    ...verb('optim_step', optimStepRequest, (model, sent, { adam_params, optimizer_params }) => {
      checkOptimizer(optimizer_params);
      if (adam_params === undefined) throw invalid('adam_params', 'are missing');
      return model.step(sent, adam_params);
    }),

    ...verb('save_weights', saveWeightsRequest, (model, sent, { path: name, overwrite, user_metadata }) => {
      const path = newPath(model.id, 'weights', name);
      return model.save(sent, path, { overwrite: overwrite ?? false, userMetadata: user_metadata ?? null }, 'save_weights');
    }),

    ...verb('save_weights_for_sampler', saveWeightsForSamplerRequest, (model, sent, { path: name, user_metadata }) => {
      const type = 'save_weights_for_sampler';
      if (name != null) {
        const path = newPath(model.id, 'sampler_weights', name);
        return model.save(sent, path, { overwrite: false, userMetadata: user_metadata ?? null }, type);
      }
      const session = sessions.session(model.sessionId);
      const publish = (found: Weights): string => sessions.addSampler(session, undefined, found).id;
      return model.saveUnnamed(sent, (found) => ({ sampling_session_id: publish(found), type }));
    }),

    ...verb('load_weights', loadWeightsRequest, (model, sent, { path: text, optimizer }) => {
      const path = parseWeightsPath(text);
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

/** A verb that is not offered has its place in a model's order too. */
export function notOffered(sessions: Sessions<Model>): Route {
  return (request) =>
    inOrder(sessions, 'verb', () => {
      throw refused('unknown_route', `${request.method} ${request.path.slice(0, 100)} is not offered here`);
    })(request);
}

type OrderedRoute = (body: Body, digest: string) => HttpReply;

/**
 * A route of a model's order. A request that it refuses for good has used up its seq_id nevertheless: clients count on, and the next one
 * would wait for one that never comes.
 */
function inOrder(sessions: Sessions<Model>, verb: string, route: OrderedRoute): Route {
  return async (request) => {
    const body = await readBody(request);
    // A body means something only together with where it was sent.
    const digest = `${verb} ${body.digest}`;
    try {
      return route(body, digest);
    } catch (thrown) {
      const { status, message } = failureIn(thrown);
      const isTriedAgain = status >= 500 || [408, 409, 429].includes(status);
      const { modelId, seqId } = isTriedAgain ? {} : headOf(body);
      const model = sessions.models.find(({ id }) => id === modelId);
      if (Number.isSafeInteger(seqId) && Number(seqId) >= 1) model?.refused({ seqId: Number(seqId), digest }, verb, message);
      throw thrown;
    }
  };
}

/** Whose request it is and which, of a body that is otherwise not understood. One that is too large to be parsed is looked at in both ends. */
function headOf(body: Body): { readonly modelId?: unknown; readonly seqId?: unknown } {
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
  { base, sessions, futures, weights, gapMs }: TrainingParts,
  session: Session<Model>,
  asked: ReturnType<typeof createModelRequest.parse>,
): { readonly future: Future; readonly model: Model } {
  if (sessions.models.length >= TINKER_LIMITS.models) sessions.endSilent();
  if (sessions.models.length >= TINKER_LIMITS.models) {
    throw refused('too_many_models', `there are ${sessions.models.length} models in training, and no more at once`, {
      hint: 'unload a model or finish its session; one without a heartbeat for a minute makes room by itself',
    });
  }
  const id = newId('m');
  const opened = (async () => {
    await weights.createRun(id, {
      base_model: base.name,
      lora_rank: asked.lora_config?.rank ?? null,
      created_at: new Date().toISOString(),
      user_metadata: asked.user_metadata ?? null,
    });
    return new TrainingModel(await base.open());
  })();
  const model = new Model({ id, sessionId: session.id, opened, futures, folder: weights, gapMs });
  sessions.addModel(model);
  const future = futures.start(async () => {
    try {
      await opened;
    } catch (thrown) {
      sessions.forgetModel(id);
      throw thrown;
    }
    return { kind: 'reply', value: { model_id: id, base_model: base.name, full_parameter_training: true, type: 'create_model' } };
  }, session.id);
  return { future, model };
}

function checkOptimizer(asked: { readonly type: string } | null | undefined): void {
  const type = asked?.type ?? 'adamw';
  if (type === 'adamw') return;
  const found = `the optimizer is ${JSON.stringify(type.slice(0, 40))}, expected adamw`;
  throw refused('not_offered', found, { param: 'optimizer_config' });
}

/** Without a name, one is made up. */
function newPath(modelId: string, kind: WeightsKind, given: string | null | undefined): WeightsPath {
  const name = given ?? new Date().toISOString().replaceAll(/\D/g, '');
  checkWeightsName(name, 'path');
  return { modelId, kind, name };
}
