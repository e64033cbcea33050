/**
 * `trainyard/testing`: what a store, engine or trainer of your own is tested with, an engine that says what it is told, and a record of a run's
 * operations with its judge. Re-exports only.
 */

export {
  checkHistory,
  FAULTS,
  type Fault,
  type Finding,
  type HistoryCheck,
  type HistoryReport,
} from './testing/check-history.ts';
export type { ConformanceCase, EngineUnderTest, PolicyConformanceOptions, PolicyUnderTest } from './testing/conformance.ts';
export { engineConformance } from './testing/engine-conformance.ts';
export { type History, type HistorySink, historyFile, recordHistory } from './testing/record-history.ts';
export { type StoreConformanceOptions, storeConformance } from './testing/store-conformance.ts';
export { trainerConformance } from './testing/trainer-conformance.ts';
export {
  manifestOf,
  randomTrajectory,
  type Script,
  type ScriptedEngine,
  scriptedEngine,
  scriptedLogprob,
} from './testing/trajectories.ts';
