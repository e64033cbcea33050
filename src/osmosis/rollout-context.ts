/**
 * `RolloutContext`: where the policy of the running rollout is, and which named conversations it holds. It follows the code across awaits;
 * contexts nest, and the outer one is back when the inner one ends.
 *
 * Samples are told apart by name: each is a thread of its own at the gateway. What is graded and trained is the gateway's record of
 * them; a sample source gives a framework's own view, which a grader sees only where the gateway is in another process.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { ModelHandle } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { RolloutSample } from './rollout-sample.ts';

/** Whoever keeps a conversation: an agent, a session. Asked when the rollout has ended. */
export interface SampleSource {
  getSample(name: string): RolloutSample | Promise<RolloutSample>;
}

/** It travels in a header, which loses spaces at its ends, and names a reward. */
const SAMPLE_NAME = /^(?!__proto__$)[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?$/;

const storage = new AsyncLocalStorage<RolloutContext>();

/** The context of the rollout that the calling code belongs to. */
export function getRolloutContext(): RolloutContext | null {
  return storage.getStore() ?? null;
}

export interface RolloutContextFields {
  /** The base URL; clients append `/chat/completions`. Absent: the model's, else OSMOSIS_CHAT_COMPLETIONS_URL of the environment. */
  readonly chatCompletionsUrl?: string;
  /** Absent: the model's, else OSMOSIS_API_KEY. */
  readonly apiKey?: string;
  /** Absent: OSMOSIS_ROLLOUT_ID. */
  readonly rolloutId?: string;
  /** The policy for agents of frameworks. Workflows get it; a context made by hand, for a client of one's own, needs none. */
  readonly model?: ModelHandle;
}

export class RolloutContext {
  /** The base URL; clients append `/chat/completions`. */
  readonly chatCompletionsUrl: string;
  readonly apiKey: string;
  readonly rolloutId: string;
  readonly #model: ModelHandle | undefined;
  readonly #sources = new Map<string, SampleSource>();
  #unnamed = 0;

  constructor({ model, chatCompletionsUrl = model?.baseURL, apiKey = model?.apiKey, rolloutId }: RolloutContextFields = {}) {
    this.chatCompletionsUrl = givenOr('OSMOSIS_CHAT_COMPLETIONS_URL', chatCompletionsUrl);
    this.apiKey = givenOr('OSMOSIS_API_KEY', apiKey);
    this.rolloutId = givenOr('OSMOSIS_ROLLOUT_ID', rolloutId);
    this.#model = model;
  }

  /** Runs `fn` with this as its context. */
  run<T>(fn: () => T): T {
    return storage.run(this, fn);
  }

  /** What a client of one's own sends along, so that its calls are of this sample. */
  headers(sampleId: string): { readonly 'x-sample-id': string; readonly 'x-rollout-id': string } {
    return { 'x-sample-id': checkedName(sampleId), 'x-rollout-id': this.rolloutId };
  }

  /** The policy, in the conversation of this name. */
  model(sampleId: string): ModelHandle {
    if (this.#model !== undefined) return this.#model.thread(checkedName(sampleId));
    throw new TrainyardError('NO_ROLLOUT', 'this RolloutContext was made by hand and knows only a URL and a key', {
      hint: 'use a client with chatCompletionsUrl, apiKey and headers(name), or run the agent inside run(ctx) of an AgentWorkflow',
    });
  }

  registerSampleSource(name: string, source: SampleSource): void {
    checkedName(name);
    if (this.#sources.has(name)) {
      throw new TrainyardError(
        'WORKFLOW_FAILED',
        `Session with ${name} already exists, please give your session or agent a unique name in the workflow`,
      );
    }
    this.#sources.set(name, source);
  }

  /** The same in every rollout, so that rewards of a sample are compared with their like. */
  nameForUnnamed(): string {
    this.#unnamed += 1;
    return `agent-${this.#unnamed}`;
  }

  /** By name, as their sources have them now. */
  async getSamples(): Promise<Readonly<Record<string, RolloutSample>>> {
    const sample = async ([name, source]: [string, SampleSource]) => [name, await source.getSample(name)] as const;
    return Object.fromEntries(await Promise.all([...this.#sources].map(sample)));
  }
}

function givenOr(variable: string, given: string | undefined): string {
  const value = given ?? process.env[variable];
  if (value !== undefined && value !== '') return value;
  throw new TrainyardError('NO_ROLLOUT', `RolloutContext: expected a value, or ${variable} in the environment, found neither`);
}

function checkedName(name: string): string {
  if (typeof name === 'string' && SAMPLE_NAME.test(name)) return name;
  throw new TrainyardError('WORKFLOW_FAILED', `the name of an agent or session is ${describeValue(name)}`, {
    hint: 'give it 1 to 128 printable ASCII characters, without spaces at its ends: it travels in a header',
  });
}
