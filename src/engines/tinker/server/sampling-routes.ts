/**
 * Sampling: the pool of models to sample from, the execution of one sample request, and the routes for samples and sampling sessions.
 * Log-probabilities are those of the plain softmax, whatever temperature and truncation the tokens were sampled with, because the API's
 * losses compare against them. For other settings, a separate forward pass over the same weights computes them.
 */
import { createHash, randomInt } from 'node:crypto';
import { checkRequest, type OnTokens } from '../../../core/policy.ts';
import type { Sample, SamplingSettings } from '../../../core/types.ts';
import { type HttpReply, jsonReply } from '../../../http/message.ts';
import type { Tokenizer } from '../../../tokens/tokenizer.ts';
import type { EmbeddedModel } from '../../embedded/embedded-model.ts';
import { readAs } from '../wire/codec.ts';
import { type SampleCall, sampleCallFromJson } from '../wire/tinker-json.ts';
import {
  createSamplingSessionRequest,
  parseWeightsPath,
  type SampledSequence,
  type SampleReply,
} from '../wire/tinker-messages.ts';
import { TINKER_LIMITS } from './limits.ts';
import { type Future, type FutureResult, futureReply, invalid, jsonOf, type Routes, readBody, refused } from './requests.ts';
import type { ServerParts } from './training.ts';
import { type BaseModel, checkBaseModel, type Weights } from './weights.ts';

interface Instance {
  readonly opened: Promise<EmbeddedModel>;
  /** Resolves when the weights named by `holds` are served. */
  ready: Promise<EmbeddedModel>;
  holds: string | undefined;
  /** When loading of `holds` began, on `performance.now()`'s clock. */
  since: number;
  calls: number;
  lastUsed: number;
  loads: number;
}

interface SamplerPoolOptions {
  readonly turnMs: number;
  isSilent(sessionId: string): boolean;
  open(): Promise<EmbeddedModel>;
}

interface SamplerCall {
  readonly weights: Weights;
  /** Empty for calls outside of any session. */
  readonly sessionId: string;
  readonly sequences: number;
  readonly signal: AbortSignal;
}

/** Calls of one session for one set of weights, in order of arrival. */
interface Queue {
  readonly sessionId: string;
  readonly weights: Weights;
  readonly waiting: Map<SamplerCall, (instance: Instance) => void>;
}

/**
 * A few models, each with one set of weights at a time. A call goes to the model that holds its weights. Otherwise the least recently used
 * idle model loads them, or a new model is opened, or the call waits. Sessions take turns, so one that queues thousands of calls does not
 * delay others. Calls of a silent session wait until it is heard from again or ended. Weights are identified by the id of their save, never
 * by name or place. A model changes weights only while unused, so a call sees one set from beginning to end.
 */
export class SamplerPool implements AsyncDisposable {
  readonly #options: SamplerPoolOptions;
  /** The model that has held its weights longest comes first. */
  #instances: Instance[] = [];
  /** The session whose turn it is comes first. */
  #queues: Queue[] = [];
  readonly #underway = new Set<SamplerCall>();
  #uses = 0;

  constructor(options: SamplerPoolOptions) {
    this.#options = options;
  }

  /** Runs `work` on a model that serves exactly these weights until `work` is done. */
  async use<T>(call: SamplerCall, work: (model: EmbeddedModel) => Promise<T>): Promise<T> {
    const instance = await this.#turnOf(call);
    try {
      return await work(await instance.ready);
    } finally {
      instance.calls--;
      this.#underway.delete(call);
      this.beginWaiting();
    }
  }

  /** Starts every call that can start. Also call this when silent sessions may have come back. */
  beginWaiting(): void {
    while (this.#beginNext());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#queues = [];
    await Promise.all(this.#instances.splice(0).map(async ({ opened }) => (await opened.catch(() => undefined))?.close()));
  }

  #turnOf(call: SamplerCall): Promise<Instance> {
    const { weights, sessionId, signal } = call;
    const { promise, resolve, reject } = Promise.withResolvers<Instance>();
    const known = this.#queues.find((one) => one.sessionId === sessionId && one.weights.id === weights.id);
    const queue: Queue = known ?? { sessionId, weights, waiting: new Map() };
    if (known === undefined) this.#queues.push(queue);
    queue.waiting.set(call, resolve);
    const cancel = () => {
      queue.waiting.delete(call);
      reject(refused('invalid_request', 'the request was cancelled'));
    };
    signal.addEventListener('abort', cancel, { once: true });
    if (signal.aborted) cancel();
    this.beginWaiting();
    return promise;
  }

  #beginNext(): boolean {
    this.#queues = this.#queues.filter(({ waiting }) => waiting.size > 0);
    for (const queue of this.#queues) {
      const [call, begin] = queue.waiting.entries().next().value!;
      const instance = this.#mayBegin(queue.sessionId) ? this.#find(queue.weights) : undefined;
      if (instance === undefined) continue;
      queue.waiting.delete(call);
      this.#underway.add(call);
      instance.calls++;
      instance.lastUsed = ++this.#uses;
      const rank = (one: Queue) => Number(one.sessionId === queue.sessionId) + Number(one === queue);
      this.#queues.sort((a, b) => rank(a) - rank(b));
      begin(instance);
      return true;
    }
    return false;
  }

  /** A session with nothing in flight starts at once, regardless of other sessions' calls. */
  #mayBegin(sessionId: string): boolean {
    if (this.#options.isSilent(sessionId)) return false;
    const underway = [...this.#underway];
    if (!underway.some((call) => call.sessionId === sessionId)) return true;
    return underway.reduce((sum, { sequences }) => sum + sequences, 0) < TINKER_LIMITS.sequences;
  }

  /** Must not await between finding an instance and taking it. */
  #find(weights: Weights): Instance | undefined {
    const holder = this.#holderOf(weights);
    if (holder !== undefined) return this.#givesWay(holder) ? undefined : holder;
    const idle = this.#instances.filter(({ calls }) => calls === 0).toSorted((a, b) => a.lastUsed - b.lastUsed)[0];
    if (idle !== undefined) return this.#load(idle, weights);
    return this.#instances.length < TINKER_LIMITS.samplers ? this.#load(this.#open(), weights) : undefined;
  }

  #holderOf({ id }: Weights): Instance | undefined {
    return this.#instances.find(({ holds }) => holds === id);
  }

  /** Otherwise calls for the loaded weights could starve all others. */
  #givesWay(instance: Instance): boolean {
    if (instance !== this.#instances[0] || performance.now() - instance.since < this.#options.turnMs) return false;
    return this.#queues.some(({ weights, sessionId }) => !this.#holderOf(weights) && !this.#options.isSilent(sessionId));
  }

  #open(): Instance {
    const opened = this.#options.open();
    const instance: Instance = { opened, ready: opened, holds: undefined, since: 0, calls: 0, lastUsed: 0, loads: 0 };
    this.#instances.push(instance);
    return instance;
  }

  #load(instance: Instance, weights: Weights): Instance {
    instance.holds = weights.id;
    instance.since = performance.now();
    this.#instances = [...this.#instances.filter((one) => one !== instance), instance];
    instance.ready = instance.opened.then(async (model) => {
      await weights.check();
      await model.load(weights.folder, { optimizer: false });
      await weights.check();
      await model.publish(++instance.loads);
      return model;
    });
    // The instance's weights are now unknown, so no call may use it.
    instance.ready.catch(() => this.#drop(instance));
    return instance;
  }

  #drop(instance: Instance): void {
    this.#instances = this.#instances.filter((one) => one !== instance);
    void instance.opened.then((model) => model.close()).catch(() => undefined);
    this.beginWaiting();
  }
}

/** Below this, a softmax leaves the range of float32. Clients mean 0. */
const LEAST_TEMPERATURE = 1e-3;

/** Throws for invalid requests before they are accepted, so that the client learns of it at once. */
function checkSampleCall(call: SampleCall, { shape, tokenizer }: BaseModel): void {
  const { temperature, top_k, stop, seed = 0 } = call.sampling_params;
  const { samples: most, stops } = TINKER_LIMITS;
  if (stop.length > stops) throw invalid('sampling_params.stop', `has ${stop.length} entries, expected at most ${stops}`);
  if (call.num_samples > most) throw invalid('num_samples', `is ${call.num_samples}, expected at most ${most}`);
  if (!(temperature >= 0)) throw invalid('sampling_params.temperature', `is ${temperature}, expected at least 0`);
  if (top_k < -1) throw invalid('sampling_params.top_k', `is ${top_k}, expected -1 or more`);
  checkRequest({ promptIds: call.prompt, sampling: settingsOf(call, shape.contextLength), stopIds: [], seed }, shape);
  if (stop.some((one) => one === '')) throw invalid('sampling_params.stop', 'holds an empty text');
  if (typeof stop[0] === 'string' && tokenizer === undefined) {
    throw invalid('sampling_params.stop', 'holds texts, but the model folder has no tokenizer', 'give the ids of stop tokens');
  }
}

async function sampleReplyOf(
  call: SampleCall,
  model: EmbeddedModel,
  tokenizer: Tokenizer | undefined,
  signal: AbortSignal,
): Promise<SampleReply> {
  const { prompt, num_samples: count } = call;
  const { stop, seed = randomInt(2 ** 47) } = call.sampling_params;
  const sampling = settingsOf(call, model.contextLength);
  const stopIds = stop.filter((one) => typeof one === 'number');
  const stopTexts = stop.filter((one) => typeof one === 'string');
  // The sequences share the prompt, so one worker can compute it once.
  const affinity = count > 1 ? { affinity: `${seed}` } : {};
  const draw = (_: unknown, i: number) => {
    const request = { promptIds: prompt, sampling, stopIds, seed: seedOf(seed, i), ...affinity };
    return model.sample(request, signal, stopTexts.length > 0 && tokenizer ? watcherOf(stopTexts, tokenizer) : undefined);
  };
  const drawn = await Promise.all(Array.from({ length: count }, draw));
  const isPlain = sampling.temperature === 1 && sampling.topP === 1 && sampling.topK === 0;
  const logprobs = isPlain ? drawn.map((one) => one.logprobs) : await model.forward(drawn.map(({ ids }) => scored(prompt, ids)));
  const sequences = drawn.map(({ ids, stopReason }, i): SampledSequence => ({ stopReason, tokens: ids, logprobs: logprobs[i]! }));
  if (!call.prompt_logprobs) return { sequences };
  const promptLogprobs = new Float32Array(prompt.length).fill(Number.NaN);
  const [found] = await model.forward([scored(prompt.subarray(0, 1), prompt.subarray(1))]);
  promptLogprobs.set(found!, 1);
  return { sequences, promptLogprobs };
}

function settingsOf({ sampling_params: params, prompt }: SampleCall, contextLength: number): SamplingSettings {
  return {
    temperature: params.temperature < LEAST_TEMPERATURE ? 0 : params.temperature,
    topK: Math.max(params.top_k, 0),
    topP: params.top_p,
    maxTokens: params.max_tokens ?? contextLength - prompt.length,
  };
}

/** The first sequence uses the request's own seed, which makes a single sequence predictable. The others use derived seeds. */
function seedOf(seed: number, index: number): number {
  if (index === 0) return seed;
  return createHash('sha256').update(`${seed} ${index}`).digest().readUIntBE(0, 6);
}

/** Ends a sequence at the token that completes a stop text. The tokens of the stop text stay part of the sequence. */
function watcherOf(stopTexts: readonly string[], tokenizer: Tokenizer): OnTokens {
  // A token may be a single byte, so a stop text has at most as many tokens as bytes. 4 more cover a character cut at the start.
  const span = Math.max(...stopTexts.map((text) => Buffer.byteLength(text))) + 4;
  let latest: number[] = [];
  return (ids) => {
    for (const [i, id] of ids.entries()) {
      latest = [...latest, id].slice(-span);
      const text = tokenizer.decode(latest);
      if (stopTexts.some((stop) => text.includes(stop))) return { keep: i + 1 };
    }
    return undefined;
  };
}

/** A sample whose forward pass gives the plain softmax's log-probabilities of `ids` after `prompt`. */
function scored(prompt: Int32Array, ids: Int32Array): Sample {
  const length = prompt.length + ids.length;
  const tokens = new Int32Array(length);
  tokens.set(prompt);
  tokens.set(ids, prompt.length);
  const none = new Float32Array(length);
  const mask = new Uint8Array(length).fill(1, prompt.length);
  const versions = new Int32Array(length);
  const unused = { logprobs: none, advantages: none, versions, weight: 1, rolloutId: 'scored', groupId: 'scored' };
  return { ...unused, tokens, mask, temperature: 1 };
}

export function samplingRoutes({ base, futures, sessions, weights }: ServerParts, samplers: SamplerPool): Routes {
  let waiting = 0;
  const pinned = (path: string) => weights.pin(parseWeightsPath(path, 'model_path'), 'model_path');

  const start = (call: SampleCall, from: Weights, sessionId?: string): Future => {
    checkSampleCall(call, base);
    if (waiting >= TINKER_LIMITS.samplesWaiting) {
      throw refused('too_busy', `${waiting} samples wait already`, { hint: 'wait for earlier ones' });
    }
    waiting++;
    const controller = new AbortController();
    const { signal } = controller;
    const work = async (): Promise<FutureResult> => {
      try {
        const asked = { weights: from, sessionId: sessionId ?? '', sequences: call.num_samples, signal };
        const reply = await samplers.use(asked, (model) => sampleReplyOf(call, model, base.tokenizer, signal));
        return { kind: 'sample', reply };
      } finally {
        waiting--;
      }
    };
    return futures.start(work, sessionId, () => controller.abort());
  };

  return {
    'POST /create_sampling_session': async (request) => {
      const body = await readBody(request);
      const { session_id, sampling_session_seq_id, base_model, model_path } = readAs(createSamplingSessionRequest, jsonOf(body));
      const session = sessions.session(session_id);
      const path = model_path ?? undefined;
      if (base_model) checkBaseModel(base, base_model);
      else if (path === undefined) throw refused('invalid_request', 'neither base_model nor model_path was given');
      const from = path === undefined ? base.weights : await pinned(path);
      const add = () => sessions.addSampler(session, path, from);
      const sampler = session.samplers.take(sampling_session_seq_id, body.digest, add);
      return jsonReply(200, { type: 'create_sampling_session', sampling_session_id: sampler.id });
    },

    'GET /samplers/{id}': async ({ names: { id = '' } }) => {
      const { path } = sessions.sampler(id);
      // The SDK loads the tokenizer from base_model. On the same machine, it finds it in this folder.
      const base_model = base.tokenizer === undefined ? base.name : base.folder;
      return jsonReply(200, { sampler_id: id, base_model, model_path: path ?? null });
    },

    'POST /asample': async (request) => {
      const body = await readBody(request);
      const call = sampleCallFromJson(jsonOf(body, TINKER_LIMITS.jsonBytes));
      const { sampling_session_id: id, seq_id, base_model, model_path } = call;
      if (id !== undefined) {
        const { samples, weights: from, sessionId } = sessions.sampler(id);
        const future = samples.take(seq_id!, body.digest, () => start(call, from, sessionId));
        return sampleFuture(future, call);
      }
      if (base_model !== undefined) checkBaseModel(base, base_model);
      return sampleFuture(start(call, model_path === undefined ? base.weights : await pinned(model_path)), call);
    },
  };
}

/** Clients expect the ids of the sequences before these exist. */
function sampleFuture(future: Future, { num_samples: count }: SampleCall): HttpReply {
  return futureReply(future, { sample_sequence_ids: Array.from({ length: count }, (_, i) => `${future.id}-${i}`) });
}
