/**
 * The named conversations of a rollout: `RolloutContext` holds them while it runs, `RolloutSample` is one of them as a grader sees it.
 *
 * A context follows the code across awaits; contexts nest, and the outer one is back when the inner one ends. Each sample is a thread of
 * its own at the gateway, whose record is what is graded and trained; a sample source gives a framework's own view, which a grader sees
 * only where the gateway is in another process.
 */
import { currentSamples, runWithSamples, type SampleContext, type SampleSource } from '../core/context.ts';
import type { ModelHandle } from '../core/contracts.ts';
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Json, Message } from '../core/types.ts';

/** It travels in a header, which loses spaces at its ends, and names a reward. */
const SAMPLE_NAME = /^(?!__proto__$)[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?$/;

/** The context of the rollout that the calling code belongs to. */
export function getRolloutContext(): RolloutContext | null {
  const context = currentSamples();
  return context instanceof RolloutContext ? context : null;
}

export interface RolloutContextFields {
  /** Absent: the model's, else OSMOSIS_CHAT_COMPLETIONS_URL of the environment. */
  readonly chatCompletionsUrl?: string;
  /** Absent: the model's, else OSMOSIS_API_KEY. */
  readonly apiKey?: string;
  /** Absent: OSMOSIS_ROLLOUT_ID. */
  readonly rolloutId?: string;
  /** The policy for agents of frameworks. Workflows get it; a context made by hand, for a client of one's own, needs none. */
  readonly model?: ModelHandle;
}

export class RolloutContext implements SampleContext {
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
    return runWithSamples(this, fn);
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
      const hint = 'please give your session or agent a unique name in the workflow';
      throw new TrainyardError('WORKFLOW_FAILED', `Session with ${name} already exists, ${hint}`);
    }
    this.#sources.set(name, source);
  }

  /** The same in every rollout, so that rewards of a sample are compared with their like. */
  nameForUnnamed(): string {
    return `agent-${++this.#unnamed}`;
  }

  /** By name, as their sources have them now. */
  async getSamples(): Promise<Readonly<Record<string, RolloutSample>>> {
    const sampleOf = async ([name, source]: [string, SampleSource]) => {
      const sample = await source.getSample(name);
      return [name, sample instanceof RolloutSample ? sample : new RolloutSample(sample)] as const;
    };
    return Object.fromEntries(await Promise.all([...this.#sources].map(sampleOf)));
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

export interface RolloutSampleFields {
  readonly id: string;
  readonly messages: readonly Message[];
  readonly label?: Json | null;
  readonly reward?: number | null;
  readonly removeSample?: boolean;
  readonly metrics?: Record<string, number>;
  readonly extraFields?: Record<string, unknown>;
}

/** What is assigned is checked at once: a reward that is no finite number is refused where it is given, not where it would be trained. */
export class RolloutSample {
  /** The name of the agent or session. */
  readonly id: string;
  readonly messages: readonly Message[];
  readonly label: Json | null;
  /** Numbers for reports; those that are not finite are left out of them. */
  readonly metrics: Record<string, number>;
  readonly extraFields: Record<string, unknown>;
  #reward: number | null = null;
  #removeSample = false;

  constructor(fields: RolloutSampleFields) {
    if (typeof fields.id !== 'string' || fields.id === '') throw bad('id', 'a name', fields.id);
    if (!Array.isArray(fields.messages)) throw bad('messages', 'a list of messages', fields.messages);
    this.id = fields.id;
    this.messages = fields.messages;
    this.label = fields.label ?? null;
    this.metrics = { ...fields.metrics };
    this.extraFields = { ...fields.extraFields };
    this.reward = fields.reward ?? null;
    this.removeSample = fields.removeSample ?? false;
  }

  /** Finite; null: not graded yet. */
  get reward(): number | null {
    return this.#reward;
  }

  set reward(reward: number | null) {
    if (reward !== null && !Number.isFinite(reward)) throw bad('reward', 'a finite number or null', reward, 'GRADER_BAD_REWARD');
    this.#reward = reward;
  }

  /** Takes the sample out: it needs no reward, and none of its turns is trained. */
  get removeSample(): boolean {
    return this.#removeSample;
  }

  set removeSample(remove: boolean) {
    if (typeof remove !== 'boolean') throw bad('removeSample', 'true or false', remove);
    this.#removeSample = remove;
  }
}

function bad(field: string, expected: string, found: unknown, code: 'GRADER_BAD_REWARD' | 'GRADER_FAILED' = 'GRADER_FAILED') {
  return new TrainyardError(code, `the ${field} of a sample: expected ${expected}, found ${describeValue(found)}`);
}
