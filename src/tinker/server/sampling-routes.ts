/**
 * Sampling sessions and samples, and the futures of everything.
 */
import { passResultToJson, sampleCallFromJson, sampleReplyToJson } from '../wire/json.ts';
import { PROTOBUF, type SampleCall, type SampleSource } from '../wire/messages.ts';
import { encodePassResult, encodeSampleReply } from '../wire/protobuf.ts';
import { createSamplingSessionRequest, futureRequest, parseWeightsPath, readAs } from '../wire/verbs.ts';
import { ApiError } from './api-error.ts';
import { checkBaseModel } from './base-model.ts';
import type { Future, Outcome } from './futures.ts';
import { TINKER_LIMITS } from './limits.ts';
import { jsonOf, jsonReply, protobufReply, readBody, type TinkerReply } from './message.ts';
import type { Parts, Routes } from './routes.ts';
import type { Weights } from './sampler-pool.ts';
import { checkSampleCall, sampleReplyOf } from './sampling.ts';
import { futureReply } from './training-routes.ts';

export const SAMPLING_ROUTES: Routes = {
  'POST /create_sampling_session': async (parts, request) => {
    const body = await readBody(request);
    const asked = readAs(createSamplingSessionRequest, jsonOf(body));
    const session = parts.sessions.session(asked.session_id);
    const path = asked.model_path ?? undefined;
    if (asked.base_model) checkBaseModel(parts.base, asked.base_model);
    else if (path === undefined) throw new ApiError('invalid_request', 'neither base_model nor model_path was given');
    const weights =
      path === undefined ? parts.base.weights : await parts.weights.pin(parseWeightsPath(path, 'model_path'), 'model_path');
    const sampler = session.samplers.take(asked.sampling_session_seq_id, body.digest, () =>
      parts.sessions.addSampler(session, path, weights),
    );
    return jsonReply({ type: 'create_sampling_session', sampling_session_id: sampler.id });
  },

  'GET /samplers/*': async ({ sessions, base }, { names: [id = ''] }) => {
    const sampler = sessions.sampler(id);
    // The SDK takes it for where the tokenizer is; where the client runs on the same machine, it is found there.
    const baseModel = base.tokenizer === undefined ? base.name : base.folder;
    return jsonReply({ sampler_id: sampler.id, base_model: baseModel, model_path: sampler.path ?? null });
  },

  'POST /asample': async (parts, request) => {
    const body = await readBody(request);
    const call = sampleCallFromJson(jsonOf(body, TINKER_LIMITS.jsonBytes));
    const { source } = call;
    if (source.kind !== 'session') return sampleFuture(startSample(parts, call, await weightsOf(parts, source)), call);
    const { samples, weights, sessionId } = parts.sessions.sampler(source.samplingSessionId);
    return sampleFuture(
      samples.take(source.seqId, body.digest, () => startSample(parts, call, weights, sessionId)),
      call,
    );
  },

  'POST /retrieve_future': async ({ futures, sessions, waits }, request) => {
    const { request_id } = readAs(futureRequest, jsonOf(await readBody(request)));
    const future = futures.find(request_id);
    sessions.touch(future.sessionId);
    const outcome = await futures.wait(future, waits.poll, request.signal);
    if (outcome === undefined) return jsonReply({ type: 'try_again', request_id, queue_state: 'active' }, 408);
    future.delivered = true;
    return replyOf(outcome, request.header('accept')?.includes(PROTOBUF) ?? false);
  },

  /** Only sampling can be stopped; a step that was asked for is taken. */
  'POST /cancel_future': async ({ futures }, request) => {
    futures.find(readAs(futureRequest, jsonOf(await readBody(request))).request_id).cancel();
    return jsonReply({ status: 'cancelled' });
  },
};

/** Clients want a name for each sequence before it is there. */
function sampleFuture(future: Future, { count }: SampleCall): TinkerReply {
  return futureReply(future, { sample_sequence_ids: Array.from({ length: count }, (_, i) => `${future.id}-${i}`) });
}

function startSample(parts: Parts, call: SampleCall, weights: Weights, sessionId?: string): Future {
  const { base, futures, samplers, load } = parts;
  checkSampleCall(call, base.shape, base.tokenizer);
  if (load.samples >= TINKER_LIMITS.samplesWaiting) {
    throw new ApiError('too_busy', `${load.samples} samples wait already`, { hint: 'wait for earlier ones' });
  }
  load.samples++;
  const controller = new AbortController();
  const { signal } = controller;
  return futures.start(
    async () => {
      try {
        const asked = { weights, sessionId: sessionId ?? '', sequences: call.count, signal };
        const reply = await samplers.use(asked, (model) => sampleReplyOf(call, { model, tokenizer: base.tokenizer, signal }));
        return { kind: 'sample', reply };
      } finally {
        load.samples--;
      }
    },
    sessionId,
    () => controller.abort(),
  );
}

async function weightsOf(parts: Parts, source: Exclude<SampleSource, { readonly kind: 'session' }>): Promise<Weights> {
  if (source.kind === 'path') return await parts.weights.pin(parseWeightsPath(source.path, 'model_path'), 'model_path');
  checkBaseModel(parts.base, source.baseModel);
  return parts.base.weights;
}

function replyOf(outcome: Outcome, wantsProtobuf: boolean): TinkerReply {
  if (outcome.kind === 'reply') return jsonReply(outcome.value);
  if (outcome.kind === 'failed') return jsonReply(outcome.failure);
  if (outcome.kind === 'pass') {
    return wantsProtobuf ? protobufReply(encodePassResult(outcome.result)) : jsonReply(passResultToJson(outcome.result));
  }
  return wantsProtobuf ? protobufReply(encodeSampleReply(outcome.reply)) : jsonReply(sampleReplyToJson(outcome.reply));
}
