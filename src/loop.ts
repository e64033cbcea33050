/** `trainyard/loop`: the pieces that runs are made of, for writing your own loop; examples/loop.ts is one on a page. */
export { type Dataset, type DatasetOptions, readDataset, readRows, readTasks } from './dataset/tasks.ts';
export { Gateway, type GatewayOptions, type Listener, listen } from './gateway/gateway.ts';
export { EmbeddedModel, type ThreadOptions } from './nn/embedded-model.ts';
export { contextOf, type OwnContext } from './rollout/rollout-context.ts';
export { openSqliteStore } from './store/sqlite.ts';
export { loadRenderer, type Renderer } from './tokens/renderer.ts';
export { type StitchOptions, stitch } from './tokens/stitch.ts';
export {
  ALGORITHMS,
  type Algorithm,
  advantagesOf,
  hasSignal,
  turnAdvantagesOf,
  WEIGHTINGS,
  type Weighting,
} from './trainer/advantages.ts';
export { attachReference, type Batch, makeBatch } from './trainer/batch.ts';
export { dpo, makePairs, type Preferences, preferencesOf } from './trainer/dpo.ts';
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
} from './trainer/losses.ts';
export { type OverlongSettings, overlongPenalty, withOverlongPenalty } from './trainer/overlong.ts';
export { KL_ESTIMATORS, type KlEstimator, withEntropy, withKl } from './trainer/penalties.ts';
