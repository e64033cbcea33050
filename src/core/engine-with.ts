/** Standing between an engine and its callers. */
import type { Engine } from './policy.ts';

/** The engine, sampling in another way. */
export function engineWith(engine: Engine, sample: Engine['sample']): Engine {
  return {
    sample,
    get vocabSize() {
      return engine.vocabSize;
    },
    get contextLength() {
      return engine.contextLength;
    },
    get policyVersion() {
      return engine.policyVersion;
    },
  };
}
