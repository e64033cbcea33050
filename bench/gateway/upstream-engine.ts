/**
 * An engine that asks the mock upstream over HTTP, as the gateway and the baseline ask it: through one pool of undici's.
 *
 * Prompt ids go up as JSON. Tokens of a stream are told as many at a time as arrived together. No retries; a bad status throws.
 */
import { TrainyardError } from '../../src/core/errors.ts';
import type { Engine, OnTokens, SampleResult } from '../../src/core/policy.ts';
import type { Pool } from './packages.ts';

const JSON_HEADERS = { 'content-type': 'application/json' };

/** What is read of the upstream's words; a choice of a stream has one token. */
interface Generated {
  readonly choices: readonly [
    { readonly token_ids: readonly number[]; readonly logprobs: { readonly content: readonly { readonly logprob: number }[] } },
  ];
}

const GENERATE = '/v1/chat/completions';

/** What the upstream says, as typed arrays. */
export async function generate(pool: Pool, body: string, signal?: AbortSignal): Promise<SampleResult> {
  const response = await pool.request({ path: GENERATE, method: 'POST', headers: JSON_HEADERS, body, signal });
  const text = await response.body.text();
  if (response.statusCode !== 200) throw new TrainyardError('ENGINE_FAILED', `the upstream answered ${response.statusCode}`);
  const [{ token_ids: ids, logprobs }] = (JSON.parse(text) as Generated).choices;
  return {
    ids: Int32Array.from(ids),
    logprobs: Float32Array.from(logprobs.content, ({ logprob }) => logprob),
    stopReason: 'stop',
    policyVersion: 1,
  };
}

export function upstreamEngine(pool: Pool, vocabSize: number, streamPath: string): Engine {
  return {
    vocabSize,
    contextLength: 32_768,
    policyVersion: 1,
    sample(request, signal, onTokens) {
      const { maxTokens, temperature } = request.sampling;
      const body = `{"prompt":[${request.promptIds.join()}],"max_tokens":${maxTokens},"temperature":${temperature},"seed":${request.seed}}`;
      if (onTokens === undefined) return generate(pool, body, signal);
      return generateStream(pool, { path: streamPath, body: `{"stream":true,${body.slice(1)}`, signal }, onTokens);
    },
  };
}

async function generateStream(
  pool: Pool,
  asked: { readonly path: string; readonly body: string; readonly signal: AbortSignal | undefined },
  onTokens: OnTokens,
): Promise<SampleResult> {
  const { body } = await pool.request({ ...asked, method: 'POST', headers: JSON_HEADERS });
  const ids: number[] = [];
  const logprobs: number[] = [];
  let rest = '';
  const read = (chunk: Buffer): void => {
    const from = ids.length;
    const events = (rest + chunk.toString()).split('\n\n');
    rest = events.pop()!;
    for (const event of events) {
      if (event === 'data: [DONE]') continue;
      const [{ token_ids: tokens, logprobs: told }] = (JSON.parse(event.slice('data: '.length)) as Generated).choices;
      ids.push(tokens[0]!);
      logprobs.push(told.content[0]!.logprob);
    }
    if (ids.length > from) onTokens(Int32Array.from(ids.slice(from)), Float32Array.from(logprobs.slice(from)));
  };
  await new Promise<void>((resolve, reject) => {
    body.on('data', read);
    body.once('end', resolve);
    body.once('error', reject);
  });
  return { ids: Int32Array.from(ids), logprobs: Float32Array.from(logprobs), stopReason: 'stop', policyVersion: 1 };
}
