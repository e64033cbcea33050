/**
 * Making, training and unloading models. Each verb is answered with a future at once; what it does, it does in the model's order.
 */
import { passRequestFromJson } from '../wire/json.ts';
import { decodePassHead, decodePassRequest } from '../wire/protobuf.ts';
import { createModelRequest, modelRequest, optimStepRequest, readAs } from '../wire/verbs.ts';
import { ApiError, httpFailureOf } from './api-error.ts';
import { checkBaseModel } from './base-model.ts';
import type { Future } from './futures.ts';
import { TINKER_LIMITS } from './limits.ts';
import { type Body, jsonOf, jsonReply, readBody, type TinkerReply } from './message.ts';
import { Model } from './model.ts';
import type { Parts, Route, Routes } from './routes.ts';
import { newId, type Session } from './sessions.ts';
import { TrainingModel } from './training-model.ts';

export const TRAINING_ROUTES: Routes = {
  'POST /create_model': async (parts, request) => {
    const body = await readBody(request);
    const json = jsonOf(body);
    const asked = readAs(createModelRequest, json);
    const session = parts.sessions.session(asked.session_id);
    checkBaseModel(parts.base, asked.base_model);
    checkOptimizer(asked.optimizer_config?.type);
    const create = (): ReturnType<typeof createModel> => createModel(parts, session, asked);
    // Without a number of its own, every request is a new model.
    const number = asked.model_seq_id ?? undefined;
    const { future, model } = number === undefined ? create() : session.models.take(number, body.digest, create);
    return futureReply(future, {
      model_id: model.id,
      base_model: parts.base.name,
      lora_config: asked.lora_config ?? null,
      full_parameter_training: true,
      status: 'created',
    });
  },

  'POST /get_info': async ({ sessions, base }, request) => {
    const { model_id } = readAs(modelRequest, jsonOf(await readBody(request)));
    const model = sessions.model(model_id);
    return jsonReply({
      type: 'get_info',
      model_id: model.id,
      status: 'created',
      model_name: base.name,
      is_lora: false,
      lora_rank: null,
      full_parameter_training: true,
      model_data: {
        arch: 'llama',
        model_name: base.name,
        base_model: base.name,
        // Where the client runs on the same machine, its tokenizer library finds the files there.
        ...(base.tokenizer === undefined ? {} : { tokenizer_id: base.folder }),
      },
    });
  },

  'POST /unload_model': async ({ sessions }, request) => {
    const { model_id } = readAs(modelRequest, jsonOf(await readBody(request)));
    const model = sessions.model(model_id);
    return futureReply(
      model.unload(() => sessions.forgetModel(model.id)),
      { model_id: model.id },
    );
  },

  'POST /forward_backward': passRoute(false),
  'POST /forward': passRoute(true),

  'POST /optim_step': inOrder('optim_step', async ({ sessions }, body, digest) => {
    const json = jsonOf(body);
    const other = (json as { optimizer_params?: { type?: unknown } } | null)?.optimizer_params;
    if (other) checkOptimizer(String(other.type));
    const { model_id, seq_id, adam_params } = readAs(optimStepRequest, json);
    const future = sessions.model(model_id).step({ seqId: seq_id ?? undefined, digest }, adam_params);
    return futureReply(future, { model_id });
  }),
};

type OrderedRoute = (parts: Parts, body: Body, digest: string) => Promise<TinkerReply>;

/**
 * A route of a model's order. What it refuses for good has used up its seq_id nevertheless: clients count on, and the next request
 * would wait for one that never comes.
 */
export function inOrder(verb: string, route: OrderedRoute): Route {
  return async (parts, request) => {
    const body = await readBody(request);
    // A body means something only together with where it was sent.
    const digest = `${verb} ${body.digest}`;
    try {
      return await route(parts, body, digest);
    } catch (thrown) {
      const { status, message } = httpFailureOf(thrown);
      const isTriedAgain = status >= 500 || [408, 409, 429].includes(status);
      const head = isTriedAgain ? undefined : headOf(body);
      const model = parts.sessions.models.find(({ id }) => id === head?.modelId);
      if (head !== undefined) model?.refused({ seqId: head.seqId, digest }, verb, message);
      throw thrown;
    }
  };
}

export function futureReply(future: Future, more: object = {}): TinkerReply {
  return jsonReply({ request_id: future.id, future_id: future.id, status: 'pending', ...more });
}

/** A verb that is not offered here has its place in the order too. */
export const NOT_OFFERED: Route = (parts, request) =>
  inOrder('verb', async () => {
    throw new ApiError('unknown_route', `${request.method} ${request.url.slice(0, 100)} is not offered here`);
  })(parts, request);

function passRoute(forwardOnly: boolean): Route {
  return inOrder(forwardOnly ? 'forward' : 'forward_backward', async ({ sessions, futures, load }, body, digest) => {
    const { length } = body.bytes;
    if (load.bytes + length > TINKER_LIMITS.waitingBytes) {
      throw new ApiError('too_busy', `${load.bytes} bytes of requests wait already`, { hint: 'wait for earlier requests' });
    }
    const request = body.isProtobuf
      ? decodePassRequest(body.bytes)
      : passRequestFromJson(jsonOf(body, TINKER_LIMITS.jsonBytes), forwardOnly);
    const future = sessions.model(request.modelId).pass({ seqId: request.seqId, digest }, request);
    load.bytes += length;
    void futures.done(future).then(() => {
      load.bytes -= length;
    });
    return futureReply(future, { model_id: request.modelId });
  });
}

/** Whose request it is and which, of a body that is otherwise not understood. */
function headOf(body: Body): { readonly modelId: string; readonly seqId: number } | undefined {
  try {
    const { modelId, seqId } = body.isProtobuf ? decodePassHead(body.bytes) : jsonHead(body);
    return typeof modelId === 'string' && Number.isSafeInteger(seqId) && Number(seqId) >= 1
      ? { modelId, seqId: Number(seqId) }
      : undefined;
  } catch {
    return undefined;
  }
}

/** A body that is too large to be parsed is looked at where it begins and where it ends. */
function jsonHead(body: Body): { readonly modelId: unknown; readonly seqId: unknown } {
  const { bytes } = body;
  if (bytes.length <= TINKER_LIMITS.jsonBytes) {
    const { model_id: modelId, seq_id: seqId } = jsonOf(body, TINKER_LIMITS.jsonBytes) as Record<string, unknown>;
    return { modelId, seqId };
  }
  const text = Buffer.concat([bytes.subarray(0, 1000), bytes.subarray(-1000)]).toString();
  return { modelId: /"model_id"\s*:\s*"([^"]*)"/.exec(text)?.[1], seqId: Number(/"seq_id"\s*:\s*(\d+)/.exec(text)?.[1]) };
}

type CreateModel = ReturnType<typeof createModelRequest.parse>;

function createModel(parts: Parts, session: Session, asked: CreateModel): { readonly future: Future; readonly model: Model } {
  const { base, sessions, futures, weights, waits } = parts;
  if (sessions.models.length >= TINKER_LIMITS.models) {
    for (const silent of sessions.endSilent()) void silent.close('its session gave no sign of life, and others needed the room');
  }
  if (sessions.models.length >= TINKER_LIMITS.models) {
    throw new ApiError('too_many_models', `there are ${sessions.models.length} models in training, and no more at once`, {
      hint: 'unload a model or finish its session; one without a heartbeat for a minute makes room by itself',
    });
  }
  const label = {
    base_model: base.name,
    lora_rank: asked.lora_config?.rank ?? null,
    created_at: new Date(parts.clock.now()).toISOString(),
    user_metadata: asked.user_metadata ?? null,
  };
  const id = newId('m');
  const opened = (async () => {
    await weights.createRun(id, label);
    return new TrainingModel(await base.open());
  })();
  const model = new Model({ id, sessionId: session.id, label, opened, futures, folder: weights, gapMs: waits.gap });
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

function checkOptimizer(type: string | undefined): void {
  if (type === undefined || type === 'adamw') return;
  throw new ApiError('not_offered', `the optimizer is ${JSON.stringify(type.slice(0, 40))}, expected adamw`, {
    param: 'optimizer_config',
  });
}
