/**
 * Saved weights: saving, loading, looking at and removing them, and what was ever trained here.
 */
import {
  checkWeightsName,
  formatWeightsPath,
  loadWeightsRequest,
  parseWeightsPath,
  readAs,
  saveWeightsForSamplerRequest,
  saveWeightsRequest,
  type WeightsPath,
  weightsInfoRequest,
} from '../wire/verbs.ts';
import { ApiError } from './api-error.ts';
import { jsonOf, jsonReply, readBody } from './message.ts';
import type { Parts, Routed, Routes } from './routes.ts';
import { futureReply, inOrder } from './training-routes.ts';
import type { ListedWeights, RunLabel } from './weights-folder.ts';

export const WEIGHTS_ROUTES: Routes = {
  'POST /save_weights': inOrder('save_weights', async ({ sessions, weights }, body, digest) => {
    const asked = readAs(saveWeightsRequest, jsonOf(body));
    const model = sessions.model(asked.model_id);
    const path = newPath(model.id, 'weights', asked.path);
    const options = { overwrite: asked.overwrite ?? false, userMetadata: asked.user_metadata ?? null };
    const future = model.save({ seqId: asked.seq_id ?? undefined, digest }, async (write) => {
      await weights.save(path, write, options);
      return { path: formatWeightsPath(path), type: 'save_weights' };
    });
    return futureReply(future, { model_id: model.id });
  }),

  'POST /save_weights_for_sampler': inOrder('save_weights_for_sampler', async ({ sessions, weights }, body, digest) => {
    const asked = readAs(saveWeightsForSamplerRequest, jsonOf(body));
    const model = sessions.model(asked.model_id);
    const sent = { seqId: asked.seq_id ?? undefined, digest };
    if (asked.path === undefined || asked.path === null) {
      const session = sessions.session(model.sessionId);
      const future = model.saveUnnamed(sent, (found) => {
        const { id } = sessions.addSampler(session, undefined, found);
        return { sampling_session_id: id, type: 'save_weights_for_sampler' };
      });
      return futureReply(future, { model_id: model.id });
    }
    const path = newPath(model.id, 'sampler_weights', asked.path);
    const future = model.save(sent, async (write) => {
      await weights.save(path, write, { overwrite: false, userMetadata: asked.user_metadata ?? null });
      return { path: formatWeightsPath(path), type: 'save_weights_for_sampler' };
    });
    return futureReply(future, { model_id: model.id });
  }),

  'POST /load_weights': inOrder('load_weights', async ({ sessions, weights }, body, digest) => {
    const asked = readAs(loadWeightsRequest, jsonOf(body));
    if (!asked.model_id) {
      throw new ApiError('not_offered', 'load_weights without a model_id is not offered', {
        hint: 'make a model with create_model first',
      });
    }
    const model = sessions.model(asked.model_id);
    const path = parseWeightsPath(asked.path);
    if (asked.optimizer && path.kind === 'sampler_weights') {
      throw new ApiError('invalid_request', 'sampler_weights have no optimizer state', {
        hint: 'load them without it, or load what save_weights saved',
        param: 'optimizer',
      });
    }
    const sent = { seqId: asked.seq_id ?? undefined, digest };
    return futureReply(
      model.load(sent, () => weights.pin(path, 'path'), asked.optimizer, asked.path),
      { model_id: model.id },
    );
  }),

  'POST /weights_info': async ({ weights }, request) => {
    const asked = readAs(weightsInfoRequest, jsonOf(await readBody(request)));
    const path = parseWeightsPath(asked.tinker_path, 'tinker_path');
    const saved = await weights.get(path);
    const run = await weights.run(path.modelId);
    return jsonReply({
      base_model: saved.base_model,
      // Clients make a model again from this, and only know models of this kind; what is true stands beside it.
      is_lora: true,
      lora_rank: run?.lora_rank ?? 1,
      train_unembed: true,
      train_mlp: true,
      train_attn: true,
      full_parameter_training: true,
    });
  },

  'GET /training_runs': async (parts, request) => {
    const { page, cursor } = pageOf(await parts.weights.runs(), request);
    const training_runs = await Promise.all(page.map(({ modelId, label }) => runOf(parts, modelId, label)));
    return jsonReply({ training_runs, cursor });
  },

  'GET /training_runs/*/checkpoints': async ({ weights }, { names: [modelId = ''] }) => {
    await knownRun(weights, modelId);
    return jsonReply({ checkpoints: (await weights.list(modelId)).map(checkpointOf) });
  },

  'DELETE /training_runs/*/checkpoints/*': async ({ weights }, { names: [modelId = '', checkpointId = ''] }) => {
    await weights.remove(parseWeightsPath(`tinker://${modelId}/${checkpointId}`, 'checkpoint_id'));
    return jsonReply({ status: 'deleted' });
  },

  'GET /training_runs/*': async (parts, { names: [modelId = ''] }) =>
    jsonReply(await runOf(parts, modelId, await knownRun(parts.weights, modelId))),

  'GET /checkpoints': async ({ weights }, request) => {
    const lists = await Promise.all((await weights.runs()).map(({ modelId }) => weights.list(modelId)));
    const all = lists.flat().toSorted((a, b) => (a.saved_at < b.saved_at ? 1 : -1));
    const { page, cursor } = pageOf(all, request);
    return jsonReply({ checkpoints: page.map(checkpointOf), cursor });
  },
};

/** Without a name, one is made up. */
function newPath(modelId: string, kind: WeightsPath['kind'], name: string | null | undefined): WeightsPath {
  const made = name ?? `${new Date().toISOString().replaceAll(/\D/g, '')}`;
  checkWeightsName(made, 'path');
  return { modelId, kind, name: made };
}

async function knownRun(weights: Parts['weights'], modelId: string): Promise<RunLabel> {
  const label = await weights.run(modelId);
  if (label !== undefined) return label;
  throw new ApiError('unknown_model', `there is no training run ${JSON.stringify(modelId.slice(0, 80))}`);
}

async function runOf({ weights }: Parts, modelId: string, label: RunLabel): Promise<object> {
  const saved = await weights.list(modelId);
  const latest = (kind: ListedWeights['kind']) => saved.filter((one) => one.kind === kind).map(checkpointOf)[0] ?? null;
  return {
    training_run_id: modelId,
    base_model: label.base_model,
    model_owner: 'local',
    is_lora: false,
    lora_rank: null,
    full_parameter_training: true,
    corrupted: false,
    last_request_time: saved[0]?.saved_at ?? label.created_at,
    last_checkpoint: latest('weights'),
    last_sampler_checkpoint: latest('sampler_weights'),
    user_metadata:
      label.user_metadata && Object.fromEntries(Object.entries(label.user_metadata).map(([key, value]) => [key, String(value)])),
  };
}

function checkpointOf({ kind, name, saved_at, path, bytes, user_metadata }: ListedWeights): object {
  return {
    checkpoint_id: `${kind}/${name}`,
    checkpoint_type: kind === 'weights' ? 'training' : 'sampler',
    time: saved_at,
    tinker_path: path,
    size_bytes: bytes,
    public: false,
    user_metadata,
    expires_at: null,
  };
}

const LARGEST_PAGE = 1000;

function pageOf<T>(all: readonly T[], { query }: Routed): { readonly page: readonly T[]; readonly cursor: object } {
  const number = (name: string, otherwise: number): number => {
    const value = Number(query.get(name) ?? otherwise);
    if (Number.isSafeInteger(value) && value >= 0) return value;
    throw new ApiError('invalid_request', `${name} is ${query.get(name)}, expected a whole number of at least 0`, {
      param: name,
    });
  };
  const [limit, offset] = [Math.min(number('limit', 20), LARGEST_PAGE), number('offset', 0)];
  return { page: all.slice(offset, offset + limit), cursor: { offset, limit, total_count: all.length } };
}
