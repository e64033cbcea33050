/** `trainyard/loop`: the pieces that runs are made of, for writing your own loop; examples/loop.ts is one on a page. */

export { canonicalJson } from './core/json.ts';
export { summaryOf } from './core/turns.ts';
export { EmbeddedModel, type ThreadOptions } from './engines/embedded/embedded-model.ts';
export { Gateway, type GatewayOptions, type Listener, listen } from './gateway/gateway.ts';
export { contextOf, type OwnContext } from './rollout/rollout-context.ts';
export { ALGORITHMS, type Algorithm, KL_ESTIMATORS, type KlEstimator, WEIGHTINGS, type Weighting } from './settings/settings.ts';
export { openSqliteStore } from './store/sqlite.ts';
export { type Dataset, type DatasetOptions, readDataset, readRows, readTasks } from './tasks/tasks.ts';
export { loadRenderer, type Renderer } from './tokens/renderer.ts';
export { type StitchOptions, stitch } from './tokens/stitch.ts';
export { advantagesOf, hasSignal, turnAdvantagesOf } from './training/advantages.ts';
export { attachReference, type Batch, makeBatch } from './training/batch.ts';
export { dpo, makePairs, type Preferences, preferencesOf } from './training/dpo.ts';
export {
  type ClipSettings,
  cispo,
  crossEntropy,
  type DualClipSettings,
  decoupledPpo,
  dro,
  gspo,
  type ImportanceSettings,
  importanceSampling,
  ppo,
} from './training/losses.ts';
export { type OverlongSettings, overlongPenalty, withOverlongPenalty } from './training/overlong.ts';
export { withEntropy, withKl } from './training/penalties.ts';
