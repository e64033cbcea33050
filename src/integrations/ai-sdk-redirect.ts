/**
 * Plain model ids of the AI SDK (`generateText({ model: 'openai/gpt-5' })`) answered by the policy, without a change to the agent.
 *
 * The SDK looks plain ids up in `globalThis.AI_SDK_DEFAULT_PROVIDER`. Inside a rollout they become the policy, outside they go where
 * they went before.
 */
import { currentRollout } from '../core/context.ts';
import { TrainyardError } from '../core/errors.ts';
import { type PolicyLanguageModel, policy } from './ai-sdk.ts';

/** Which role a model id stands for; undefined: the role `default`. */
export type RoleOfModelId = (modelId: string) => string | undefined;

/** What the SDK asks a provider for, by kind of model. */
type Maker = (modelId: string) => unknown;
interface DefaultProvider {
  readonly languageModel?: Maker;
  readonly [kind: string]: unknown;
}
const place = globalThis as { AI_SDK_DEFAULT_PROVIDER?: DefaultProvider | undefined };

let undoCurrent: (() => void) | undefined;
let roleOf: RoleOfModelId | undefined;

/** Returns what undoes it. Called again it only changes which role an id stands for. */
export function redirectModelIds(seatOf?: RoleOfModelId): () => void {
  roleOf = seatOf;
  if (undoCurrent !== undefined) return undoCurrent;
  const before = place.AI_SDK_DEFAULT_PROVIDER;
  const redirected = providerOver(before);
  place.AI_SDK_DEFAULT_PROVIDER = redirected;
  const undo = (): void => {
    if (undoCurrent !== undo) return;
    undoCurrent = undefined;
    // Whoever put another provider there since wants that one.
    if (place.AI_SDK_DEFAULT_PROVIDER !== redirected) return;
    if (before === undefined) delete place.AI_SDK_DEFAULT_PROVIDER;
    else place.AI_SDK_DEFAULT_PROVIDER = before;
  };
  undoCurrent = undo;
  return undo;
}

function providerOver(before: DefaultProvider | undefined): DefaultProvider {
  const languageModel = (modelId: string): unknown => {
    if (currentRollout() !== undefined) return named(modelId);
    return elsewhere(before, 'languageModel')(modelId);
  };
  const own: DefaultProvider = {
    languageModel,
    embeddingModel: (modelId: string) => elsewhere(before, 'embeddingModel')(modelId),
    imageModel: (modelId: string) => elsewhere(before, 'imageModel')(modelId),
  };
  return new Proxy(before ?? own, {
    get: (target, key) => {
      // The SDK looks at the version right before it asks for the model, and adapts what it gets by it.
      if (key === 'specificationVersion') return before && currentRollout() === undefined ? Reflect.get(target, key) : 'v4';
      return key === 'languageModel' || before === undefined ? Reflect.get(own, key) : Reflect.get(target, key);
    },
    has: (target, key) => Reflect.has(own, key) || Reflect.has(target, key) || key === 'specificationVersion',
  });
}

const named = (modelId: string): PolicyLanguageModel => ({ ...policy(roleOf?.(modelId)), modelId });

function elsewhere(before: DefaultProvider | undefined, kind: string): Maker {
  const make = before?.[kind];
  if (typeof make === 'function') return (modelId) => make.call(before, modelId);
  return (modelId) => {
    const what = `model ${JSON.stringify(modelId)} was asked for`;
    throw new TrainyardError('NO_ROLLOUT', `${what} outside of a rollout, and there was no default provider before`, {
      hint: 'call it inside run(ctx), or set globalThis.AI_SDK_DEFAULT_PROVIDER before redirectModelIds()',
    });
  };
}
