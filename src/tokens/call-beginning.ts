/**
 * How a tool call begins, as this model's template writes calls: what a policy that must call a tool is given instead of sampling it.
 *
 * It ends before the arguments, or before the name where any tool will do, without white space: a model that writes some samples it.
 * Found by asking the template. There is none where the template writes no calls that can be read, or opens an answer with something
 * else, like thoughts.
 */
import type { ChatTemplate } from './chat-template.ts';
import { PROBE_CALL, readsProbe } from './formats/find-format.ts';
import type { CallFormat } from './formats/format.ts';
import { callWithId, probeTool, promptsThoughts } from './template-traits.ts';
import type { Tokenizer } from './tokenizer.ts';

/** Other names would have to be written in the format's own way, which nobody here knows. */
const PLAIN_NAME = /^[\w.-]+$/;

/** Ids of the beginning, of a call of this tool or of any; undefined where it cannot be told. */
export type CallBeginning = (name: string | undefined) => Int32Array | undefined;

export function callBeginning(template: ChatTemplate, tokenizer: Tokenizer, format: CallFormat): CallBeginning {
  const probed = promptsThoughts(template) ? undefined : probe(template, format);
  if (probed === undefined) return () => undefined;
  const { before, spoken } = probed;
  const nameAt = spoken.indexOf(PROBE_CALL.name);
  const opening = spoken.slice(0, nameAt);
  const toArguments = format.toArguments.exec(spoken.slice(nameAt + PROBE_CALL.name.length))?.[0];
  const idsBefore = tokenizer.encodeRendered(before);
  return (name) => {
    if (name !== undefined && (toArguments === undefined || !PLAIN_NAME.test(name))) return undefined;
    const text = name === undefined ? opening.replace(/\s*"$/, '') : `${opening}${name}${toArguments}`;
    // As it stands in a prompt: some tokenizers write the beginning of a text in another way.
    const ids = tokenizer.encodeRendered(before + text);
    return idsBefore.every((id, i) => id === ids[i]) && ids.length > idsBefore.length ? ids.slice(idsBefore.length) : undefined;
  };
}

/** A prompt, and what the template writes behind it for a call. Some put the tools in between, where there are any. */
function probe(template: ChatTemplate, format: CallFormat): { readonly before: string; readonly spoken: string } | undefined {
  const conversation = callWithId('call00000');
  for (const tools of [[probeTool], []]) {
    const before = template.textOf(conversation.slice(0, 1), tools, true);
    const whole = template.textOf(conversation, tools, false);
    const spoken = before !== undefined && whole?.startsWith(before) ? whole.slice(before.length) : '';
    if (before !== undefined && readsProbe(format, spoken)) return { before, spoken };
  }
  return undefined;
}
