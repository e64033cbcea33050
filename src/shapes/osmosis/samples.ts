/**
 * A rollout's named conversations: `RolloutContext` holds them during the rollout; `RolloutSample` is one of them as a grader sees it. The
 * context follows the code across awaits; contexts nest. Each sample is a thread at the gateway, whose record is graded and trained. A
 * sample source gives the framework's own view, which a grader sees only if the gateway is in another process.
 */
import { currentSamples, runWithSamples, type SampleContext, type SampleSource } from '../../core/context.ts';
import type { ModelHandle } from '../../core/contracts.ts';
import { describeValue } from '../../core/describe.ts';
import { TrainyardError } from '../../core/errors.ts';
import type { Json, Message } from '../../core/types.ts';

/** Sent as a header, which loses leading and trailing spaces, and used as the key of a reward. */
const SAMPLE_NAME = /^(?!__proto__$)[\x21-\x7e](?:[\x20-\x7e]{0,126}[\x21-\x7e])?$/;

/** The context of the current rollout; null outside of one. */
export function getRolloutContext(): RolloutContext | null {
  const context = currentSamples();
  return context instanceof RolloutContext ? context : null;
}

export interface RolloutContextFields {
  /** Default: the model's, else the environment's OSMOSIS_CHAT_COMPLETIONS_URL. */
  readonly chatCompletionsUrl?: string;
  /** Default: the model's, else the environment's OSMOSIS_API_KEY. */
  readonly apiKey?: string;
  /** Default: the environment's OSMOSIS_ROLLOUT_ID. */
  readonly rolloutId?: string;
  /** The policy for framework agents. A workflow's context always has it; a context made by hand for your own client does not need it. */
  readonly model?: ModelHandle;
}

export class RolloutContext implements SampleContext {
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

  /** Runs `fn` with this context as the current one. */
  run<T>(fn: () => T): T {
    return runWithSamples(this, fn);
  }

  /** Headers that assign your own client's calls to this sample. */
  headers(sampleId: string): { readonly 'x-sample-id': string; readonly 'x-rollout-id': string } {
    return { 'x-sample-id': checkedName(sampleId), 'x-rollout-id': this.rolloutId };
  }

  /** The policy, in the conversation of this name. Throws NO_ROLLOUT if the context was made without a model. */
  model(sampleId: string): ModelHandle {
    if (this.#model !== undefined) return this.#model.thread(checkedName(sampleId));
    throw new TrainyardError(
      'NO_ROLLOUT',
      'this RolloutContext was made by hand and knows only a URL and a key',
      'use a client with chatCompletionsUrl, apiKey and headers(name), or run the agent inside run(ctx) of an AgentWorkflow',
    );
  }

  registerSampleSource(name: string, source: SampleSource): void {
    checkedName(name);
    if (this.#sources.has(name)) {
      const hint = 'please give your session or agent a unique name in the workflow';
      throw new TrainyardError('WORKFLOW_FAILED', `Session with ${name} already exists, ${hint}`);
    }
    this.#sources.set(name, source);
  }

  /** Gives the same names in every rollout of a workflow, so that rewards are compared between corresponding samples. */
  nameForUnnamed(): string {
    return `agent-${++this.#unnamed}`;
  }

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
  throw new TrainyardError(
    'WORKFLOW_FAILED',
    `the name of an agent or session is ${describeValue(name)}`,
    'give it 1 to 128 printable ASCII characters, without spaces at its ends: it travels in a header',
  );
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

/** Setters validate: a non-finite reward throws where it is assigned, not where it would be trained. */
export class RolloutSample {
  readonly id: string;
  readonly messages: readonly Message[];
  readonly label: Json | null;
  /** For reports, which omit values that are not finite. */
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

  /** If true, the sample needs no reward and none of its turns is trained. */
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
