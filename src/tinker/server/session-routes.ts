/**
 * Getting to know the server, and sessions: configuration, capabilities, sessions and their heartbeats.
 */
import type { Json } from '../../core/types.ts';
import { createSessionRequest, readAs, sessionHeartbeatRequest } from '../wire/verbs.ts';
import { jsonOf, jsonReply, readBody } from './message.ts';
import type { Routes } from './routes.ts';

export const FULL_PARAMETERS =
  'LoRA settings are accepted, but this server trains all parameters of the model: a rank, a seed or a choice of layers has no effect.';

const CLIENT_CONFIG: Json = {
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

export const SESSION_ROUTES: Routes = {
  'GET /healthz': async () => jsonReply({ status: 'ok' }),
  'POST /client/config': async () => jsonReply(CLIENT_CONFIG as object),
  'POST /client/dynamic_config': async () =>
    jsonReply({ refresh_interval_sec: 300, sample_cancel_enabled: true, sample_cancel_max_batch_size: 64 }),
  /** Nothing is done with it, so it is not even read. */
  'POST /telemetry': async () => jsonReply({ status: 'accepted' }),

  'GET /get_server_capabilities': async ({ base }) =>
    jsonReply({
      supported_models: [
        {
          ...{ model_name: base.name, max_context_length: base.shape.contextLength, trainable: true, sampleable: true },
          ...(base.tokenizerDigest !== undefined && { tokenizer_sha256: base.tokenizerDigest }),
        },
      ],
      full_parameter_training: true,
    }),

  'POST /create_session': async ({ sessions }, request) => {
    readAs(createSessionRequest, jsonOf(await readBody(request)));
    return jsonReply({ type: 'create_session', session_id: sessions.create().id, warning_message: FULL_PARAMETERS });
  },

  'POST /session_heartbeat': async ({ sessions }, request) => {
    sessions.session(readAs(sessionHeartbeatRequest, jsonOf(await readBody(request))).session_id);
    return jsonReply({ type: 'session_heartbeat' });
  },

  'GET /sessions/*': async ({ sessions }, { names: [id = ''] }) => {
    const { models, samplers } = sessions.idsOf(sessions.session(id).id);
    return jsonReply({ training_run_ids: models, sampler_ids: samplers });
  },

  /** Its models are closed; what they saved stays. */
  'POST /sessions/*/finish': async ({ sessions }, { names: [id = ''] }) => {
    for (const model of sessions.end(sessions.session(id).id)) void model.close('its session was finished');
    return jsonReply({ status: 'finished' });
  },
};
