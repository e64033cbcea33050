/**
 * A `Session` of the OpenAI Agents SDK that keeps its items, and tells the policy which conversation of the rollout it is.
 *
 * Several sessions in one rollout are several threads. The SDK does not tell a model whose session it is called for, but it asks the
 * session for its items right before: from then on the rollout's code, as far as it goes on from there, is in that conversation. So in a
 * rollout either every run has a session or none has. `session.run` says it outright, and is left again.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import { currentRollout } from '../core/context.ts';
import type { WorkflowContext } from '../core/contracts.ts';

interface Place {
  readonly thread: string;
  /** Where the session was asked; absent where `run` said it. */
  readonly seenIn?: WorkflowContext;
}

const places = new AsyncLocalStorage<Place>();

/** The thread of the session that the calling code runs in, if any. */
export function activeThread(): string | undefined {
  const place = places.getStore();
  // What a session was asked for in one rollout says nothing in another, which may have been started from there.
  if (place?.seenIn !== undefined && place.seenIn !== currentRollout()) return undefined;
  return place?.thread;
}

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
    return places.run({ thread: this.name }, fn);
  }

  async getSessionId(): Promise<string> {
    return this.name;
  }

  /** The latest `limit` of them, in order; all without one. */
  async getItems(limit?: number): Promise<Item[]> {
    this.#enter();
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

  #enter(): void {
    const rollout = currentRollout();
    const place = places.getStore();
    if (rollout === undefined || (place !== undefined && place.seenIn === undefined)) return;
    places.enterWith({ thread: this.name, seenIn: rollout });
  }
}
