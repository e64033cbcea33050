/** `trainyard/testing`: conformance tests for stores, engines and trainers, a scripted engine, and a run history with its checker. */

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
