/**
 * Whether a conversation can fit into the context at all, told from the length of its text. To tokenise megabytes takes seconds, in which
 * nobody else is served; what cannot fit is refused without it. What passes is measured in tokens by the engine, as ever.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Renderer } from '../tokens/renderer.ts';
import type { Question } from './dialects/dialect.ts';

/** Normal forms make a text shorter, by less than this factor. */
const NORMALISING = 4;
/** Texts up to this length are not worth a look. */
const SHORT = 64 * 1024;

const longest = new WeakMap<Renderer, number>();

/** Throws CONTEXT_OVERFLOW. */
export function checkLength(renderer: Renderer, contextLength: number, { messages }: Question): void {
  const length = messages.reduce((sum, { content }) => sum + (content?.length ?? 0), 0);
  if (length <= SHORT || length <= NORMALISING * longestTokenOf(renderer) * contextLength) return;
  throw new TrainyardError(
    'CONTEXT_OVERFLOW',
    `${length} characters are more than a context of ${contextLength} tokens can hold`,
  );
}

/** Characters of the longest token; what is half a character counts as one. */
function longestTokenOf(renderer: Renderer): number {
  const known = longest.get(renderer);
  if (known !== undefined) return known;
  let most = 1;
  for (let id = 0; id < renderer.vocabSize; id++) most = Math.max(most, renderer.tokenText(id).length);
  longest.set(renderer, most);
  return most;
}
