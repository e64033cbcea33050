/**
 * What a rollout remembers for the Responses API, which lets a client name what it was told instead of repeating it:
 * `item_reference` and `previous_response_id`.
 */

/** One item of a conversation in the Responses API's own form. */
export type Item = Readonly<Record<string, unknown>>;

export class ResponsesMemory {
  readonly #items = new Map<string, Item>();
  readonly #conversations = new Map<string, readonly Item[]>();

  /** `input` and `output`: the whole conversation up to and with this response. */
  keep(responseId: string, input: readonly Item[], output: readonly Item[]): void {
    for (const item of output) if (typeof item['id'] === 'string') this.#items.set(item['id'], item);
    this.#conversations.set(responseId, [...input, ...output]);
  }

  item(id: string): Item | undefined {
    return this.#items.get(id);
  }

  conversation(responseId: string): readonly Item[] | undefined {
    return this.#conversations.get(responseId);
  }
}
