/**
 * An engine that says what it is told: the slow, obvious stand-in for a policy in tests of what surrounds one.
 *
 * Log-probabilities are made up from the ids, so that a test can tell whether each one stayed with its token.
 */
import { setImmediate as turn } from 'node:timers/promises';
import type { Engine, SampleRequest, SampleResult } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';

export interface ScriptedEngine extends Engine {
  /** Every request that was sampled, in order of arrival. */
  readonly requests: readonly SampleRequest[];
  policyVersion: number;
}

export interface Script {
  readonly vocabSize: number;
  readonly contextLength: number;
  /** What the policy "samples"; ids past maxTokens are cut off. May wait, and should mind the signal if it does. */
  reply(request: SampleRequest, call: number, signal: AbortSignal | undefined): readonly number[] | Promise<readonly number[]>;
}

/** The log-probability that a scripted engine reports for an id. */
export function scriptedLogprob(id: number): number {
  return Math.fround(-(id + 1) / 1000);
}

/** Streamed tokens come a few at a time, so that a reader which expects them one by one, or all at once, is found out. */
const TOKENS_AT_ONCE = 3;

export function scriptedEngine(script: Script): ScriptedEngine {
  const requests: SampleRequest[] = [];
  return {
    vocabSize: script.vocabSize,
    contextLength: script.contextLength,
    policyVersion: 0,
    requests,
    async sample(request, signal, onTokens): Promise<SampleResult> {
      signal?.throwIfAborted();
      const room = script.contextLength - request.promptIds.length;
      if (room < 1)
        throw new TrainyardError(
          'CONTEXT_OVERFLOW',
          `the prompt has ${request.promptIds.length} tokens, the context ${script.contextLength}`,
        );
      const { policyVersion } = this;
      const call = requests.push(request) - 1;
      const reply = await script.reply(request, call, signal);
      signal?.throwIfAborted();
      const stop = reply.findIndex((id) => request.stopIds.includes(id));
      const wanted = stop === -1 ? reply : reply.slice(0, stop + 1);
      const ids = Int32Array.from(wanted.slice(0, Math.min(room, request.sampling.maxTokens)));
      const ended = stop !== -1 && ids.length === wanted.length;
      const logprobs = Float32Array.from(ids, scriptedLogprob);
      for (let at = 0; onTokens !== undefined && at < ids.length; at += TOKENS_AT_ONCE) {
        onTokens(ids.slice(at, at + TOKENS_AT_ONCE), logprobs.slice(at, at + TOKENS_AT_ONCE));
        await turn();
        signal?.throwIfAborted();
      }
      return { ids, logprobs, stopReason: ended ? 'stop' : 'length', policyVersion };
    },
  };
}
