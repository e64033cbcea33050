/**
 * Samples from a model at a Tinker server, through a sampling session: weights that never change, served as one policy version.
 *
 * The gateway checks what comes back, as it does every engine's answers. A Tinker server does not stream: `onTokens` gets everything at
 * once. Its log-probabilities are those of the plain softmax, whatever temperature, top-k and top-p the tokens were sampled with; so what is
 * sampled with other settings than temperature 1 and no truncation serves for evaluation only, and the trainer refuses it.
 */
import { Semaphore } from '../../core/async.ts';
import { TrainyardError } from '../../core/errors.ts';
import { checkRequest, type Engine, type OnTokens, type SampleRequest, type SampleResult } from '../../core/policy.ts';
import { decodeSampleReply } from '../wire/protobuf.ts';
import { modelInputToJson, sampleReplyFromJson } from '../wire/tinker-json.ts';
import type { SampleReply } from '../wire/tinker-messages.ts';
import type { Accepted, TinkerConnection } from './connection.ts';
import { orCancelled } from './http-client.ts';

export interface TinkerEngineParts {
  readonly connection: TinkerConnection;
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly samplingSessionId: string;
  readonly policyVersion: number;
}

/** What is being served: a request belongs to one of these from its first try to its last. */
interface Served {
  readonly samplingSessionId: string;
  readonly policyVersion: number;
  /** Requests sent under it so far; the last one's `seq_id`. */
  requests: number;
}

export class TinkerEngine implements Engine {
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly #connection: TinkerConnection;
  /** Samples under way. */
  readonly #samples: Semaphore;
  /** Requests that are being written and accepted: few at a time, so that a thousand calls at once do not block the event loop. */
  readonly #submissions = new Semaphore(16);
  #served: Served;

  constructor({ connection, vocabSize, contextLength, samplingSessionId, policyVersion }: TinkerEngineParts) {
    this.vocabSize = vocabSize;
    this.contextLength = contextLength;
    this.#connection = connection;
    this.#samples = new Semaphore(connection.config.sample_max_concurrent_requests);
    this.#served = { samplingSessionId, policyVersion, requests: 0 };
  }

  get policyVersion(): number {
    return this.#served.policyVersion;
  }

  /** From now on requests are sent under this session. Those that are waited for end as the version they were sent under. */
  serve(samplingSessionId: string, policyVersion: number): void {
    this.#served = { samplingSessionId, policyVersion, requests: 0 };
  }

  async sample(request: SampleRequest, signal?: AbortSignal, onTokens?: OnTokens): Promise<SampleResult> {
    checkRequest(request, this);
    const result = await orCancelled(
      signal,
      this.#samples.run(() => this.#ask(request, signal), signal),
    );
    const enough = onTokens?.(result.ids, result.logprobs);
    if (enough === undefined) return result;
    const { ids, logprobs } = result;
    return { ...result, ids: ids.slice(0, enough.keep), logprobs: logprobs.slice(0, enough.keep), stopReason: 'stop' };
  }

  async #ask(request: SampleRequest, signal: AbortSignal | undefined): Promise<SampleResult> {
    const { accepted, policyVersion } = await this.#submissions.run(() => this.#submit(request, signal), signal);
    const payload = await accepted.result();
    const reply = await this.#connection.decode('asample', () =>
      payload.kind === 'protobuf' ? decodeSampleReply(payload.bytes) : sampleReplyFromJson(payload.value),
    );
    return { ...onlySequence(reply), policyVersion };
  }

  async #submit(
    { promptIds, sampling, stopIds, seed }: SampleRequest,
    signal: AbortSignal | undefined,
  ): Promise<{ readonly accepted: Accepted; readonly policyVersion: number }> {
    const served = this.#served;
    const body = {
      sampling_session_id: served.samplingSessionId,
      seq_id: ++served.requests,
      num_samples: 1,
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

function onlySequence({ sequences }: SampleReply): Omit<SampleResult, 'policyVersion'> {
  const [sequence] = sequences;
  if (sequence === undefined || sequences.length !== 1) {
    throw new TrainyardError('POLICY_GARBLED', `asample gave ${sequences.length} sequences, expected 1`);
  }
  const { tokens: ids, logprobs = new Float32Array(0), stopReason } = sequence;
  return { ids, logprobs, stopReason };
}

/** The wire's seeds have 31 bits, for servers that keep them in 32; equal seeds stay equal. */
function foldedSeed(seed: number): number {
  const bits = BigInt.asUintN(64, BigInt(seed));
  return Number((bits ^ (bits >> 31n)) & 0x7fff_ffffn);
}
