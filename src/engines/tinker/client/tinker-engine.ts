/**
 * Samples from a Tinker server through a sampling session, whose fixed weights are served as one policy version. The gateway checks the
 * results as it does for every engine. A Tinker server does not stream, so `onTokens` gets all tokens at once. Its log-probabilities are
 * those of the plain softmax, whatever temperature, top-k and top-p were used. Samples at settings other than temperature 1 without
 * truncation are therefore only good for evaluation, and the trainer refuses them.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { orAborted, Semaphore } from '../../../core/async.ts';
import { TrainyardError } from '../../../core/errors.ts';
import { checkRequest, type Engine, type OnTokens, type SampleRequest, type SampleResult } from '../../../core/policy.ts';
import { decodeSampleReply } from '../wire/protobuf.ts';
import { modelInputToJson, sampleReplyFromJson } from '../wire/tinker-json.ts';
import type { SampleReply } from '../wire/tinker-messages.ts';
import type { TinkerConnection } from './connection.ts';
import { orCancelled } from './http-client.ts';

export interface TinkerEngineParts {
  readonly connection: TinkerConnection;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly samplingSessionId: string;
  readonly policyVersion: number;
  /**
   * Whether equal prompts that arrive together are asked as one request with several samples, which costs such a server little more than
   * one. Their seeds then follow from the first one's, so results depend on timing: not for servers that give the same again.
   */
  readonly gathers?: boolean;
}

/** Equal requests that wait for each other. */
interface Gathered {
  count: number;
  cancelled: number;
  readonly leave: AbortController;
  readonly results: Promise<readonly SampleResult[]>;
}

/** Milliseconds. A batch of such a server takes hundreds. */
const GATHER_MS = 20;

/** A request stays with the session it started under, retries included. */
interface Served {
  readonly samplingSessionId: string;
  readonly policyVersion: number;
  /** Requests sent so far; also the `seq_id` of the last one. */
  requests: number;
}

export class TinkerEngine implements Engine {
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly #connection: TinkerConnection;
  readonly #samples: Semaphore;
  /** Limits requests being encoded and submitted, so that a thousand simultaneous calls do not block the event loop. */
  readonly #submissions = new Semaphore(16);
  readonly #gathered: Map<string, Gathered> | undefined;
  #served: Served;
  #changing: PromiseWithResolvers<void> | undefined;
  /** How often the weights began to change. */
  #changes = 0;

  constructor({ connection, vocabSize, contextLength, samplingSessionId, policyVersion, gathers }: TinkerEngineParts) {
    this.#gathered = gathers ? new Map() : undefined;
    this.vocabSize = vocabSize;
    this.contextLength = contextLength;
    this.#connection = connection;
    this.#samples = new Semaphore(connection.config.sample_max_concurrent_requests);
    this.#served = { samplingSessionId, policyVersion, requests: 0 };
  }

  get policyVersion(): number {
    return this.#served.policyVersion;
  }

  /** New requests use this session. Requests in flight finish under the version they were sent with, unless `hold` was called. */
  serve(samplingSessionId: string, policyVersion: number): void {
    this.#served = { samplingSessionId, policyVersion, requests: 0 };
    this.#changing?.resolve();
    this.#changing = undefined;
  }

  /**
   * For a server that may sample from its newest weights whatever the session: nothing is sampled until the next `serve`, and what is in
   * flight is sampled again then, since nobody could say which weights made it.
   */
  hold(): void {
    this.#changes++;
    this.#changing ??= Promise.withResolvers();
  }

  async sample(request: SampleRequest, signal?: AbortSignal, onTokens?: OnTokens): Promise<SampleResult> {
    checkRequest(request, this);
    const alone = async (): Promise<SampleResult> => (await this.#samples.run(() => this.#ask(request, 1, signal), signal))[0]!;
    const result = await orCancelled(signal, this.#gathered === undefined ? alone() : this.#together(request, signal));
    const enough = onTokens?.(result.ids, result.logprobs);
    if (enough === undefined) return result;
    const { ids, logprobs } = result;
    return { ...result, ids: ids.slice(0, enough.keep), logprobs: logprobs.slice(0, enough.keep), stopReason: 'stop' };
  }

  async #together(request: SampleRequest, signal: AbortSignal | undefined): Promise<SampleResult> {
    const { promptIds, sampling, stopIds } = request;
    const prompt = Buffer.from(promptIds.buffer, promptIds.byteOffset, promptIds.byteLength).toString('latin1');
    const key = JSON.stringify([prompt, sampling, stopIds]);
    const group = this.#gathered!.get(key) ?? this.#gather(key, request);
    const place = group.count++;
    const cancel = () => {
      if (++group.cancelled === group.count) group.leave.abort();
    };
    signal?.addEventListener('abort', cancel, { once: true });
    try {
      return (await (signal ? orAborted(group.results, signal) : group.results))[place]!;
    } finally {
      signal?.removeEventListener('abort', cancel);
    }
  }

  #gather(key: string, request: SampleRequest): Gathered {
    const leave = new AbortController();
    const ask = async (): Promise<readonly SampleResult[]> => {
      await sleep(GATHER_MS);
      this.#gathered!.delete(key);
      return await this.#samples.run(() => this.#ask(request, group.count, leave.signal), leave.signal);
    };
    const group: Gathered = { count: 0, cancelled: 0, leave, results: ask() };
    group.results.catch(() => undefined);
    this.#gathered!.set(key, group);
    return group;
  }

  async #ask(request: SampleRequest, count: number, signal: AbortSignal | undefined): Promise<readonly SampleResult[]> {
    while (this.#changing !== undefined) await (signal ? orAborted(this.#changing.promise, signal) : this.#changing.promise);
    const changes = this.#changes;
    const { accepted, policyVersion } = await this.#submissions.run(() => this.#submit(request, count, signal), signal);
    const payload = await accepted.result();
    if (changes !== this.#changes) return this.#ask(request, count, signal);
    const reply = await this.#connection.decode('asample', () =>
      payload.kind === 'protobuf' ? decodeSampleReply(payload.bytes) : sampleReplyFromJson(payload.value),
    );
    return sequencesOf(reply, count).map((sequence) => ({ ...sequence, policyVersion }));
  }

  async #submit({ promptIds, sampling, stopIds, seed }: SampleRequest, count: number, signal: AbortSignal | undefined) {
    const served = this.#served;
    const body = {
      sampling_session_id: served.samplingSessionId,
      seq_id: ++served.requests,
      num_samples: count,
      prompt: modelInputToJson(promptIds),
      sampling_params: {
        max_tokens: Math.min(sampling.maxTokens, this.contextLength - promptIds.length),
        seed: foldedSeed(seed),
        ...(stopIds.length > 0 && { stop: stopIds }),
        temperature: sampling.temperature,
        top_k: sampling.topK === 0 ? -1 : sampling.topK,
        top_p: sampling.topP,
      },
      prompt_logprobs: false,
      type: 'sample',
    };
    const submission = { verb: 'asample', requestType: 'Sample', purpose: 'sample', body, repeatable: true, signal } as const;
    return { accepted: await this.#connection.submit(submission), policyVersion: served.policyVersion };
  }
}

function sequencesOf({ sequences }: SampleReply, count: number): readonly Omit<SampleResult, 'policyVersion'>[] {
  if (sequences.length !== count) {
    throw new TrainyardError('POLICY_GARBLED', `asample gave ${sequences.length} sequences, expected ${count}`);
  }
  return sequences.map(({ tokens: ids, logprobs = new Float32Array(0), stopReason }) => ({ ids, logprobs, stopReason }));
}

/** The wire's seeds have 31 bits, for servers that store them in 32. Equal seeds stay equal. */
function foldedSeed(seed: number): number {
  const bits = BigInt.asUintN(64, BigInt(seed));
  return Number((bits ^ (bits >> 31n)) & 0x7fff_ffffn);
}
