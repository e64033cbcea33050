/** What can play a role while it is not trained. Only the shape is looked at here; the gateway asks it. */
import type { DefaultModelLike } from './contracts.ts';
import { TrainyardError } from './errors.ts';

/** `whose` begins the message of a mistake: `role "judge"`. */
export function checkDefaultModel(given: unknown, whose: string): asserts given is DefaultModelLike {
  if (typeof given === 'function') return;
  if (typeof given === 'object' && given !== null && 'name' in given && typeof given.name === 'string') {
    if ('baseURL' in given && typeof given.baseURL === 'string') return;
    if ('generate' in given && typeof given.generate === 'function') return;
  }
  throw new TrainyardError('WORKFLOW_INVALID', `${whose}: expected a default model, found ${described(given)}`, {
    hint: 'give { name, baseURL, apiKey } of an OpenAI-compatible server, or a function from { messages } to a text',
  });
}

function described(given: unknown): string {
  if (typeof given !== 'object' || given === null) return String(given);
  return `an object with ${Object.keys(given).join(', ') || 'nothing'}`;
}
