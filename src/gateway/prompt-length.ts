/**
 * Whether a conversation can fit into the context at all, told from the length of its text. To tokenise megabytes takes seconds, in which
 * nobody else is served; what cannot fit is refused without it. What passes is measured in tokens by the engine, as ever.
 */
import { TrainyardError } from '../core/errors.ts';
import type { Message, Tool } from '../core/types.ts';
import type { Renderer } from '../tokens/renderer.ts';

/** Normal forms make a text shorter, by less than this factor. */
const NORMALISING = 4;
/** Texts up to this length are not worth a look. */
const SHORT = 64 * 1024;

const longest = new WeakMap<Renderer, number>();

/** Throws CONTEXT_OVERFLOW. `tools`: those that are to be rendered; none where a recorded prompt has them already. */
export function checkLength(
  renderer: Renderer,
  contextLength: number,
  messages: readonly Message[],
  tools: readonly Tool[] = [],
): void {
  let length = tools.length === 0 ? 0 : JSON.stringify(tools).length;
  for (const { content, reasoning, tool_calls: calls } of messages) {
    length += (content?.length ?? 0) + (reasoning?.length ?? 0);
    for (const call of calls ?? []) length += call.function.arguments.length;
  }
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
