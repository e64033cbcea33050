/**
 * Where the policy is sampled and trained: in this process (`embedded`), or on a server of the Tinker API (`tinker`). Of a model on a
 * server the local folder gives what is about text, tokenizer and chat template; its weights are the server's.
 */
import { EmbeddedModel } from '../nn/policy.ts';
import { checkVocabulary, type Policy, type PolicyOptions, type PolicySettings } from './policy.ts';

/** Serves the weights of `settings.model` as version 0. `words` is the size of the folder's tokenizer. */
export async function openPolicy(settings: PolicySettings, words: number, options: PolicyOptions): Promise<Policy> {
  if (settings.engine === 'tinker') {
    const { openTinkerPolicy } = await import('../tinker/client/tinker-policy.ts');
    return await openTinkerPolicy(settings, words, options);
  }
  const { model: dir, threads } = settings;
  const model = await EmbeddedModel.open({ dir, threads, variant: options.kernels });
  try {
    checkVocabulary(words, model.vocabSize);
  } catch (thrown) {
    await model.close();
    throw thrown;
  }
  return { name: dir, engine: model, trainer: model, [Symbol.asyncDispose]: () => model.close() };
}
