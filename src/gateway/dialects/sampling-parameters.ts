/** How a client asks for tokens to be drawn: the same names and ranges in every dialect but for the limit, which has a name in each. */
import { z } from 'zod';
import type { SamplingSettings } from '../../core/types.ts';

export const samplingFields = {
  temperature: z.number().min(0).max(2).nullish(),
  top_p: z.number().gt(0).max(1).nullish(),
  top_k: z.int().min(0).nullish(),
};
export const tokenLimit = z.int().min(1).nullish();

type Asked = { readonly [name in keyof typeof samplingFields]?: number | null | undefined };

/** What was asked for; whether it holds is for the session to say. */
export function requestedSampling(asked: Asked, maxTokens: number | null | undefined): Partial<SamplingSettings> {
  const { temperature, top_p: topP, top_k: topK } = asked;
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(topP == null ? {} : { topP }),
    ...(topK == null ? {} : { topK }),
    ...(maxTokens == null ? {} : { maxTokens }),
  };
}
