/**
 * One model in training at a Tinker server. Verbs are sent in call order, each with the model's next `seq_id`. A verb resolves when the
 * server has accepted it and returns a promise of its result, so the next one can be sent while the server still works. The server cannot
 * undo a gradient: if a backward pass fails, or if it is unknown whether a request arrived, the model is spoiled. All later verbs then
 * fail, and a step in flight is not trusted. Callers must not send two verbs concurrently; they choose the loss and handle a spoiled model.
 */
import { randomUUID } from 'node:crypto';
import { mapYielding } from '../../../core/async.ts';
import { messageOf, TrainyardError } from '../../../core/errors.ts';
import { defined } from '../../../core/json.ts';
import type { AdamSettings } from '../../../core/policy.ts';
import type { ByName, Json } from '../../../core/types.ts';
import { readAs } from '../wire/codec.ts';
import { decodePassResult, encodedBytes, encodePassRequest } from '../wire/protobuf.ts';
import { passRequestToText, passResultFromJson } from '../wire/tinker-json.ts';
import {
  adamToWire,
  type ClientConfigReply,
  createModelReply,
  type Datum,
  formatWeightsPath,
  optimStepReply,
  PASS_LIMITS,
  type PassRequest,
  type PassResult,
  saveWeightsForSamplerReply,
  saveWeightsReply,
} from '../wire/tinker-messages.ts';
import type { PassFormat, Payload, Submission, TinkerConnection } from './connection.ts';
import { isLost } from './http-client.ts';

/** Accepted by the server, result pending. */
export interface Underway<T> {
  readonly result: Promise<T>;
}

export interface ModelStart {
  readonly baseModel: string;
  readonly loraRank: number;
  readonly seed: number;
  /** Saved state at the server to start from. Default: the base model. */
  readonly path?: string | undefined;
}

/** `lossSum`: the loss reported by the server, summed over all chunks. Undefined if it reports none. `metrics`: of the first chunk. */
export type PassOutput = Pick<PassResult, 'outputs' | 'metrics'> & { readonly lossSum: number | undefined };

interface Pass<T> extends Omit<PassRequest, 'modelId' | 'seqId'> {
  /** Interprets the outputs. If it throws, the gradient is not trusted either. */
  readonly read: (output: PassOutput) => Promise<T>;
  /** Whether a failure proves that the server computed nothing. */
  readonly isHarmless?: (thrown: unknown) => boolean;
}

/** Attempts to load saved state, each in a new model, while the responses get lost. */
const MOST_LOADS = 3;

export class TinkerModel {
  readonly id: string;
  /** Describes an identical model, as long as this one has not been trained. */
  readonly start: ModelStart;
  readonly #connection: TinkerConnection;
  #seqId = 0;
  #spoiled: TrainyardError | undefined;
  readonly #published = new Set<string>();
  /** Backward passes since the last step. A step is trusted only once all of them have succeeded. */
  #gradient: Promise<unknown>[] = [];

  /** If it is unknown whether a load took effect, repeats it in another new model, which every server allows. */
  static async create(connection: TinkerConnection, start: ModelStart): Promise<TinkerModel> {
    for (let loads = 1; ; loads++) {
      const model = await TinkerModel.#new(connection, start);
      try {
        if (start.path !== undefined) await model.#load(start.path);
        return model;
      } catch (thrown) {
        // Servers hold few models at once, and nothing else would free this one.
        await model.unload();
        if (!isLost(thrown) || loads === MOST_LOADS) throw thrown;
      }
    }
  }

  static async #new(connection: TinkerConnection, start: ModelStart): Promise<TinkerModel> {
    const verb = 'create_model';
    const { baseModel: base_model, loraRank: rank, seed } = start;
    const accepted = await connection.inSession(() => {
      const session = { session_id: connection.sessionId, model_seq_id: connection.nextModel() };
      const lora_config = { rank, seed, train_unembed: true, train_mlp: true, train_attn: true };
      const body = { ...session, base_model, lora_config, type: verb };
      return connection.submit({ verb, purpose: 'train', body, repeatable: true });
    });
    const { model_id: id, base_model: given } = await connection.decode(verb, () => readAs(createModelReply, accepted.reply));
    await accepted.result();
    const model = new TinkerModel(connection, start, id);
    if ((given ?? base_model) === base_model) return model;
    await model.unload();
    throw new TrainyardError(
      'POLICY_REFUSED',
      `the server made a model of ${given}, asked for one of ${base_model}`,
      'give --base-model a model that the server has; the tokenizer in --model must be of the same one',
    );
  }

  private constructor(connection: TinkerConnection, start: ModelStart, id: string) {
    this.#connection = connection;
    this.start = start;
    this.id = id;
  }

  assertSound(): void {
    const cause = this.#spoiled;
    if (cause === undefined) return;
    const why = `the model at the server is not to be trusted since an earlier verb failed: ${cause.message}`;
    throw new TrainyardError(cause.code, why, { hint: 'load what was saved last', cause });
  }

  /** Sends the data in chunks of the server's preferred size, which are computed as one batch. Needs at least one datum. */
  async pass<T>(pass: Pass<T>): Promise<Underway<T>> {
    this.assertSound();
    const format = this.#connection.passFormat ?? (await this.#findFormat(pass.data[0]!));
    this.#connection.passFormat = format;
    const chunks = await cutIntoChunks(pass.data, format, this.#connection.config);
    const answers = await this.#sendChunks(pass, chunks, format);
    const read = async (): Promise<T> => {
      const payloads = await Promise.all(answers.map(({ result }) => result));
      const results = await this.#connection.decode('forward_backward', () => mapYielding(payloads, readPass));
      return pass.read(joinResults(results, chunks));
    };
    if (pass.forwardOnly) return { result: quietly(read()) };
    const underway = this.#spoiling(async () => {
      try {
        return await read();
      } catch (thrown) {
        // A chunk that succeeded has left its gradient at the server, even if other chunks failed.
        const settled = await Promise.allSettled(answers.map(({ result }) => result));
        throw settled.some(({ status }) => status === 'fulfilled') ? this.#spoil(thrown) : thrown;
      }
    }, pass.isHarmless);
    this.#gradient.push(underway.result);
    return underway;
  }

  async optimStep(adam: AdamSettings): Promise<Underway<{ readonly gradNorm: number | undefined }>> {
    const answer = await this.#verb('optim_step', { adam_params: adamToWire(adam) });
    const passes = this.#gradient;
    this.#gradient = [];
    return this.#spoiling(async () => {
      const reply = await this.#decoded('optim_step', answer, optimStepReply);
      await Promise.allSettled(passes);
      this.assertSound();
      return { gradNorm: gradNormOf(reply.metrics ?? {}) };
    });
  }

  /** Saves weights and optimizer state at the server and returns their path. */
  async save(): Promise<Underway<string>> {
    const answer = await this.#saving('save_weights', () => ({ path: `trainyard-${randomUUID()}` }));
    const read = async () => (await this.#decoded('save_weights', answer, saveWeightsReply)).path;
    return { result: quietly(read()) };
  }

  /** Opens a sampling session on the current weights. */
  async publish(): Promise<Underway<string>> {
    const verb = 'save_weights_for_sampler';
    const answer = await this.#saving(verb, () => ({ sampling_session_seq_id: this.#connection.nextSamplingSession() }));
    const read = async (): Promise<string> => {
      const { sampling_session_id: id, path } = await this.#decoded(verb, answer, saveWeightsForSamplerReply);
      if (id == null && path == null) throw garbled(`${verb} gave neither a sampling session nor a path`);
      const session = id ?? (await this.#connection.createSamplingSession({ path: path! }));
      // A session belongs to one set of weights. A repeated id would pass off old samples as new.
      if (this.#published.has(session)) throw garbled(`${verb} gave a sampling session that earlier weights have`);
      this.#published.add(session);
      return session;
    };
    return { result: quietly(read()) };
  }

  /** Keeps the current weights at the server under this name, in the form that it samples from and hands out. Returns their path. */
  async saveForSampler(name: string): Promise<Underway<string>> {
    const verb = 'save_weights_for_sampler';
    const answer = await this.#verb(verb, { path: name });
    const read = async () =>
      (await this.#decoded(verb, answer, saveWeightsForSamplerReply)).path ??
      formatWeightsPath({ modelId: this.id, kind: 'sampler_weights', name });
    return { result: quietly(read()) };
  }

  /** Lets the server drop the model. Never throws. */
  async unload(): Promise<void> {
    await this.#connection.mention('POST', 'unload_model', { model_id: this.id, type: 'unload_model' });
  }

  /** Includes the optimizer state. Must be the first verb of a model. */
  async #load(path: string): Promise<void> {
    try {
      await (await this.#verb('load_weights', { path, optimizer: true })).result;
    } catch (thrown) {
      // A refusal that has no hint of its own.
      if (isRefusal(thrown) && thrown.hint === undefined) throw this.#withoutState(path, thrown);
      if (!isLost(thrown) || thrown.details === undefined) throw thrown;
      // The path is unknown, unless the server has just restarted again: then this throws POLICY_LOST.
      await this.#connection.post('get_info', { model_id: this.id, type: 'get_info' });
      throw this.#withoutState(path, thrown);
    }
  }

  #withoutState(path: string, cause: unknown): TrainyardError {
    const why = `the server at ${this.#connection.address} cannot load ${path}: ${messageOf(cause)}`;
    const hint =
      'set TINKER_BASE_URL to the server that saved it; if that has it no more, begin a new run from another checkpoint with --model';
    return new TrainyardError('POLICY_REFUSED', why, { hint, cause });
  }

  /** On 409, an earlier attempt whose response was lost took our unique name. Saves under a new one: that save may be incomplete. */
  async #saving(verb: string, body: () => ByName<Json>): Promise<Underway<Payload>> {
    try {
      return await this.#verb(verb, body());
    } catch (thrown) {
      if (statusOf(thrown) !== 409) throw thrown;
      return await this.#verb(verb, body());
    }
  }

  /** Probes the server's encoding with a pass that has no effect: a server without protobuf refuses it or fails on it. */
  async #findFormat({ tokens, inputs }: Datum): Promise<PassFormat> {
    const target_tokens = { dtype: 'int64', data: Int32Array.from(inputs['target_tokens']!.data.subarray(0, 1)) } as const;
    const weights = { dtype: 'float32', data: Float32Array.of(1) } as const;
    const data = [{ tokens: tokens.subarray(0, 1), inputs: { target_tokens, weights } }];
    const request = { modelId: this.id, seqId: ++this.#seqId, data, loss: 'cross_entropy', lossSettings: {}, forwardOnly: true };
    try {
      await this.#connection.submit({
        ...(await encodePass(request, 'protobuf')),
        purpose: 'train',
        repeatable: true,
        isTrial: true,
      });
      return 'protobuf';
    } catch (thrown) {
      // Some servers do not send a 500 as JSON.
      const isGarbled = thrown instanceof TrainyardError && thrown.code === 'POLICY_GARBLED';
      if (isRefusedAtOnce(thrown) || isGarbled || statusOf(thrown) === 500) return 'json';
      throw this.#spoil(thrown);
    }
  }

  /** Assigns seq_ids in order; the chunks travel in parallel. */
  async #sendChunks(
    { loss, lossSettings, forwardOnly }: Pass<unknown>,
    chunks: readonly (readonly Datum[])[],
    format: PassFormat,
  ): Promise<Underway<Payload>[]> {
    const sent: Promise<Underway<Payload>>[] = [];
    for (const data of chunks) {
      const request: PassRequest = { modelId: this.id, seqId: ++this.#seqId, data, loss, lossSettings, forwardOnly };
      const encoded = await encodePass(request, format);
      sent.push(quietly(this.#submit(encoded)));
      // Encoding takes a while, so yield between chunks.
      await new Promise(setImmediate);
    }
    const settled = await Promise.allSettled(sent);
    const failed = settled.filter((one) => one.status === 'rejected').map(({ reason }) => reason);
    if (failed.length === 0) return Promise.all(sent);
    const allRefused = failed.length === settled.length && failed.every(isRefusedAtOnce);
    throw allRefused ? failed[0] : this.#spoil(failed.find((error) => !isRefusedAtOnce(error)) ?? failed[0]);
  }

  async #decoded<T>(verb: string, answer: Underway<Payload>, schema: Parameters<typeof readAs<T>>[0]): Promise<T> {
    const payload = await answer.result;
    return this.#connection.decode(verb, () => readAs(schema, payload.kind === 'json' ? payload.value : undefined));
  }

  async #verb(verb: string, body: ByName<Json>): Promise<Underway<Payload>> {
    this.assertSound();
    try {
      return await this.#submit({ verb, body: { model_id: this.id, seq_id: ++this.#seqId, ...body, type: verb } });
    } catch (thrown) {
      throw (isRefusedAtOnce(thrown) || statusOf(thrown) === 409) && verb !== 'optim_step' ? thrown : this.#spoil(thrown);
    }
  }

  async #submit(encoded: EncodedVerb): Promise<Underway<Payload>> {
    // Servers with protobuf recognize repeated passes and steps by seq_id and refuse a save under a taken name. Older servers would execute
    // them twice. Only some servers recognize a repeated load.
    const repeatable = this.#connection.passFormat !== 'json' && encoded.verb !== 'load_weights';
    const accepted = await this.#connection.submit({ ...encoded, purpose: 'train', repeatable });
    return { result: quietly(accepted.result()) };
  }

  #spoiling<T>(work: () => Promise<T>, isHarmless?: (thrown: unknown) => boolean): Underway<T> {
    const guarded = work().catch((thrown: unknown) => {
      throw isHarmless?.(thrown) ? thrown : this.#spoil(thrown);
    });
    return { result: quietly(guarded) };
  }

  #spoil(thrown: unknown): unknown {
    this.#spoiled ??= thrown instanceof TrainyardError ? thrown : new TrainyardError('TRAINER_FAILED', messageOf(thrown));
    return thrown;
  }
}

export function isRefusal(thrown: unknown): thrown is TrainyardError {
  return thrown instanceof TrainyardError && thrown.code === 'POLICY_REFUSED';
}

/** Such a request used up its seq_id and had no effect. */
function isRefusedAtOnce(thrown: unknown): boolean {
  return isRefusal(thrown) && [400, 415, 422].includes(statusOf(thrown) ?? 0);
}

function statusOf(thrown: unknown): number | undefined {
  return thrown instanceof TrainyardError ? (thrown.details as { readonly status?: number } | undefined)?.status : undefined;
}

function garbled(found: string): TrainyardError {
  return new TrainyardError('POLICY_GARBLED', found);
}

/** Callers may ignore the promise without causing an unhandled rejection. */
function quietly<T>(promise: Promise<T>): Promise<T> {
  promise.catch(() => undefined);
  return promise;
}

type EncodedVerb = Pick<Submission, 'verb' | 'requestType' | 'body'>;

/** A server with JSON gets one request unless it says otherwise: it may compute what has arrived, in one pass for each part of a batch. */
const JSON_LIMITS = { fwdbwd_max_chunk_len: Infinity, fwdbwd_max_chunk_bytes_count: Infinity };

async function cutIntoChunks(data: readonly Datum[], format: PassFormat, config: ClientConfigReply): Promise<Datum[][]> {
  const limits = { ...(format === 'json' ? JSON_LIMITS : PASS_LIMITS), ...defined(config) };
  const { fwdbwd_max_chunk_len: mostDatums, fwdbwd_max_chunk_bytes_count: mostBytes } = limits;
  const sizes = await mapYielding(data, encodedBytes);
  const chunks: Datum[][] = [];
  let bytes = 0;
  for (const [i, datum] of data.entries()) {
    const isFull = chunks.length === 0 || chunks.at(-1)!.length === mostDatums || bytes + sizes[i]! > mostBytes;
    if (isFull) chunks.push([]);
    chunks.at(-1)!.push(datum);
    bytes = (isFull ? 0 : bytes) + sizes[i]!;
  }
  return chunks;
}

async function encodePass(request: PassRequest, format: PassFormat): Promise<EncodedVerb> {
  const requestType = request.forwardOnly ? 'Forward' : 'ForwardBackward';
  if (format === 'protobuf') return { verb: 'forward_backward', requestType, body: encodePassRequest(request) };
  return { verb: request.forwardOnly ? 'forward' : 'forward_backward', requestType, body: await passRequestToText(request) };
}

function readPass(payload: Payload): PassResult {
  return payload.kind === 'protobuf' ? decodePassResult(payload.bytes) : passResultFromJson(payload.value);
}

/** Throws POLICY_GARBLED if a chunk has too many or too few outputs, since later outputs would belong to the wrong samples. */
function joinResults(results: readonly PassResult[], chunks: readonly (readonly Datum[])[]): PassOutput {
  for (const [i, { outputs }] of results.entries()) {
    const expected = chunks[i]!.length;
    if (outputs.length !== expected) throw garbled(`the server gave ${outputs.length} outputs for ${expected} samples`);
  }
  const sums = results.map(({ metrics }) => metrics['loss:sum']);
  const lossSum = sums.reduce((sum, one) => (sum === undefined || one === undefined ? undefined : sum + one), 0);
  return { outputs: results.flatMap(({ outputs }) => outputs), metrics: results[0]!.metrics, lossSum };
}

/** Finds the gradient norm in the metrics, whatever prefix and suffix the server adds. Throws TRAINER_FAILED if it is not finite. */
function gradNormOf(metrics: ByName<number>): number | undefined {
  const [key, norm] = Object.entries(metrics).find(([name]) => /(^|[^a-z])grad(ient)?_norm$/.test(name.split(':')[0]!)) ?? [];
  if (norm === undefined || Number.isFinite(norm)) return norm;
  throw new TrainyardError(
    'TRAINER_FAILED',
    `the server took a step with ${key} ${norm}, expected a finite number`,
    'load the last checkpoint and lower the learning rate',
  );
}
