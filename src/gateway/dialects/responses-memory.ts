/**
 * What a rollout remembers for the Responses API, which lets a client name what it was told instead of repeating it:
 * `item_reference`, `previous_response_id`, and reasoning that a client returns without its text.
 *
 * A response links to the one before it, so a long conversation costs what was said in it once. Dies with the session; in one that
 * never ends the oldest responses are forgotten.
 */
import type { Message } from '../../core/types.ts';

/** One item of a conversation in the Responses API's own form. */
export type Item = Readonly<Record<string, unknown>>;

export interface KeptItem {
  readonly item: Item;
  /** The response it is part of. */
  readonly responseId: string;
}

export interface KeptResponse {
  readonly id: string;
  readonly previous: KeptResponse | undefined;
  /** What was new in this call, its instructions left out, and what was answered. */
  readonly messages: readonly Message[];
  readonly items: readonly Item[];
}

const MOST_RESPONSES = 10_000;

export class ResponsesMemory {
  readonly #responses = new Map<string, KeptResponse>();
  /** Output items, by their own id and by the id of the call that they are. */
  readonly #items = new Map<string, KeptItem>();

  /** A response that is written again, for a retry, keeps the items of both writings. */
  keep(response: KeptResponse): void {
    const { id } = response;
    const before = this.#responses.get(id)?.items ?? [];
    const others = before.filter((item) => response.items.every((other) => other['id'] !== item['id']));
    this.#responses.set(id, { ...response, items: [...others, ...response.items] });
    for (const item of response.items) for (const name of namesOf(item)) this.#items.set(name, { item, responseId: id });
    const [oldest] = this.#responses.keys();
    if (this.#responses.size > MOST_RESPONSES) this.#forget(oldest!);
  }

  item(name: string): KeptItem | undefined {
    return this.#items.get(name);
  }

  response(id: string): KeptResponse | undefined {
    return this.#responses.get(id);
  }

  #forget(id: string): void {
    for (const item of this.#responses.get(id)?.items ?? []) for (const name of namesOf(item)) this.#items.delete(name);
    this.#responses.delete(id);
  }
}

/** The whole conversation up to and with this response. */
export function conversationOf(last: KeptResponse): readonly Message[] {
  const parts: (readonly Message[])[] = [];
  for (let at: KeptResponse | undefined = last; at !== undefined; at = at.previous) parts.push(at.messages);
  return parts.toReversed().flat();
}

const namesOf = (item: Item): readonly string[] => [item['id'], item['call_id']].filter((name) => typeof name === 'string');
