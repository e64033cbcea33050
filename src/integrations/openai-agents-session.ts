/**
 * A `Session` of the OpenAI Agents SDK that keeps its items, and tells the policy which conversation of the rollout it is.
 *
 * Several sessions in one rollout are several threads. The SDK does not tell a model whose session it is called for; `session.run` does:
 * calls of the policy inside of it belong to this session's thread, across awaits.
 */
import { AsyncLocalStorage } from 'node:async_hooks';

const threads = new AsyncLocalStorage<string>();

/** The thread of the session that the calling code runs in, if any. */
export const activeThread = (): string | undefined => threads.getStore();

/** `Item` is the SDK's `AgentInputItem`. */
export class RecordingSession<Item extends object = object> {
  /** Of the conversation, and of its thread in the trajectory. */
  readonly name: string;
  #items: Item[];

  constructor(name: string, items: readonly Item[] = []) {
    this.name = name;
    this.#items = structuredClone([...items]);
  }

  /** Runs `fn`, most often a `run(agent, input, { session })`, as part of this conversation. */
  run<T>(fn: () => T): T {
    return threads.run(this.name, fn);
  }

  async getSessionId(): Promise<string> {
    return this.name;
  }

  /** The latest `limit` of them, in order; all without one. */
  async getItems(limit?: number): Promise<Item[]> {
    const from = limit === undefined ? 0 : Math.max(0, this.#items.length - Math.max(0, limit));
    return structuredClone(this.#items.slice(from));
  }

  async addItems(items: readonly Item[]): Promise<void> {
    this.#items.push(...structuredClone([...items]));
  }

  async popItem(): Promise<Item | undefined> {
    return this.#items.pop();
  }

  async clearSession(): Promise<void> {
    this.#items = [];
  }
}
