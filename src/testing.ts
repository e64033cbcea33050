/**
 * `trainyard/testing`: what a store of your own is tested with, and an engine that says what it is told. Re-exports only.
 */

export { type Script, type ScriptedEngine, scriptedEngine, scriptedLogprob } from './testing/scripted-engine.ts';
export {
  type ConformanceCase,
  type StoreConformanceOptions,
  storeConformance,
} from './testing/store-conformance.ts';
export { manifestOf, randomTrajectory } from './testing/trajectories.ts';
