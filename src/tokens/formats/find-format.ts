/**
 * Which tool-call format a model has: the one whose reader finds in the template's own words the call that the template was given.
 *
 * Looks at what the template writes, never at the model's name. A template that writes no calls gets the Hermes format, which is what
 * most models without one of their own were taught.
 */
import { isDeepStrictEqual } from 'node:util';
import type { CallFormat } from './format.ts';
import { hermes } from './hermes.ts';
import { parseOr } from './json-source.ts';
import { llama } from './llama.ts';
import { mistral } from './mistral.ts';
import { qwen3Coder } from './qwen3-coder.ts';

export const FORMATS: readonly CallFormat[] = [hermes, qwen3Coder, llama, mistral];

export const PROBE_CALL = { name: 'probe', arguments: '{"key":"value"}' };

/** `spoken`: what the template writes for an assistant turn that is the probe's call and nothing else; undefined if it refuses to. */
export function findFormat(spoken: string | undefined): CallFormat {
  return FORMATS.find((format) => spoken !== undefined && readsProbe(format, spoken)) ?? hermes;
}

/** Whether the first call in it is the probe's. */
export function readsProbe(format: CallFormat, spoken: string): boolean {
  const read = format.reader();
  let rest = spoken.trimStart();
  let said = false;
  while (rest !== '') {
    const step = read(rest, true, said ? 'within text' : 'start');
    if (step?.kind === 'calls') {
      const [call] = step.calls;
      return call?.name === PROBE_CALL.name && isDeepStrictEqual(parseOr(call.arguments), parseOr(PROBE_CALL.arguments));
    }
    rest = rest.slice(step?.length ?? rest.length);
    said = true;
  }
  return false;
}
