/**
 * An engine that says what it is told: the slow, obvious stand-in for a policy in tests of what surrounds one.
 *
 * Log-probabilities are made up from the ids, so that a test can tell whether each one stayed with its token.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Engine, SampleRequest, SampleResult } from '../core/policy.ts';

export interface ScriptedEngine extends Engine {
  /** Every request that was sampled, in order of arrival. */
  readonly requests: readonly SampleRequest[];
  policyVersion: number;
}

export interface Script {
  readonly vocabSize: number;
  readonly contextLength: number;
  /**
   * What the policy "samples", whole or a few ids at a time; ids past maxTokens are cut off. May wait, and should mind the signal if
   * it does.
   */
  reply(request: SampleRequest, call: number, signal: AbortSignal | undefined): Reply | Promise<Reply>;
}

type Reply = readonly number[] | AsyncIterable<readonly number[]>;

/** The log-probability that a scripted engine reports for an id. */
export function scriptedLogprob(id: number): number {
  return Math.fround(-(id + 1) / 1000);
}

export function scriptedEngine(script: Script): ScriptedEngine {
  const requests: SampleRequest[] = [];
  return {
    vocabSize: script.vocabSize,
    contextLength: script.contextLength,
    policyVersion: 0,
    requests,
    async sample(request, signal, onTokens): Promise<SampleResult> {
      goOn(signal);
      const room = script.contextLength - request.promptIds.length;
      if (room < 1)
        throw new TrainyardError(
          'CONTEXT_OVERFLOW',
          `the prompt has ${request.promptIds.length} tokens, the context ${script.contextLength}`,
        );
      const { policyVersion } = this;
      const call = requests.push(request) - 1;
      const most = Math.min(room, request.sampling.maxTokens);
      const reply = await script.reply(request, call, signal);
      const sampled: number[] = [];
      let ended = false;
      for await (const part of Symbol.asyncIterator in reply ? reply : [reply]) {
        goOn(signal);
        const stop = part.findIndex((id) => request.stopIds.includes(id));
        const kept = Int32Array.from(part.slice(0, Math.min(most - sampled.length, stop === -1 ? part.length : stop + 1)));
        ended = stop !== -1 && kept.length === stop + 1;
        for (const id of kept) sampled.push(id);
        const enough = kept.length > 0 ? onTokens?.(kept, Float32Array.from(kept, scriptedLogprob)) : undefined;
        if (enough !== undefined) {
          sampled.length -= kept.length - enough.keep;
          ended = true;
        }
        if (ended || sampled.length === most) break;
      }
      goOn(signal);
      const ids = Int32Array.from(sampled);
      return { ids, logprobs: Float32Array.from(ids, scriptedLogprob), stopReason: ended ? 'stop' : 'length', policyVersion };
    },
  };
}

function goOn(signal: AbortSignal | undefined): void {
  if (signal?.aborted) throw new TrainyardError('CANCELLED', 'the sample call was cancelled', { cause: signal.reason });
}
