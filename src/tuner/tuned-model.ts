/**
 * One role's model, in every form an agent may want: what `ctx.model(role)` offers, a language model of the AI SDK, and a `Model` of the
 * OpenAI Agents SDK. Whoever plays the role is decided by the gateway at every call; nothing here knows who it is.
 *
 * Holds no state of its own, and needs neither SDK to be installed.
 */
import type { ClientOptions, GenerateRequest, Generation, ModelHandle } from '../core/contracts.ts';
import { policy as languageModel, type PolicyLanguageModel } from '../integrations/ai-sdk.ts';
import { policy as agentsModel, type PolicyModel } from '../integrations/openai-agents.ts';
import { generateStructured, type Structured, type StructuredRequest } from './structured.ts';

export class TunedModel implements ModelHandle, PolicyLanguageModel, PolicyModel {
  readonly role: string;
  readonly name: string;
  readonly baseURL: string;
  readonly apiKey: string;
  readonly fetch: typeof globalThis.fetch;
  readonly specificationVersion: PolicyLanguageModel['specificationVersion'];
  readonly provider: string;
  readonly modelId: string;
  readonly supportedUrls: PolicyLanguageModel['supportedUrls'];
  readonly doGenerate: PolicyLanguageModel['doGenerate'];
  readonly doStream: PolicyLanguageModel['doStream'];
  readonly #handle: ModelHandle;

  constructor(handle: ModelHandle) {
    const ai = languageModel(handle);
    this.#handle = handle;
    this.role = handle.role;
    this.name = handle.name;
    this.baseURL = handle.baseURL;
    this.apiKey = handle.apiKey;
    this.fetch = handle.fetch;
    this.specificationVersion = ai.specificationVersion;
    this.provider = ai.provider;
    this.modelId = ai.modelId;
    this.supportedUrls = ai.supportedUrls;
    this.doGenerate = ai.doGenerate;
    this.doStream = ai.doStream;
  }

  openai(): ClientOptions {
    return this.#handle.openai();
  }

  anthropic(): ClientOptions {
    return this.#handle.anthropic();
  }

  generate(request: GenerateRequest): Promise<Generation> {
    return this.#handle.generate(request);
  }

  /** One call whose answer must fit a schema, by a tool that the model has to call. */
  generateStructured<T>(request: StructuredRequest<T>): Promise<Structured<T>> {
    return generateStructured(this.#handle, request);
  }

  render(...given: Parameters<ModelHandle['render']>): Int32Array {
    return this.#handle.render(...given);
  }

  decode(ids: ArrayLike<number>): string {
    return this.#handle.decode(ids);
  }

  /** The same role in another conversation. */
  thread(name: string): TunedModel {
    return new TunedModel(this.#handle.thread(name));
  }

  getResponse(request: Parameters<PolicyModel['getResponse']>[0]): ReturnType<PolicyModel['getResponse']> {
    return agentsModel(this.#handle).getResponse(request);
  }

  getStreamedResponse(
    request: Parameters<PolicyModel['getStreamedResponse']>[0],
  ): ReturnType<PolicyModel['getStreamedResponse']> {
    return agentsModel(this.#handle).getStreamedResponse(request);
  }
}
