/** `@trainyard/testing`: conformance tests for stores, engines and trainers, a scripted engine, and a run history with its checker. */

export {
  checkHistory,
  FAULTS,
  type Fault,
  type Finding,
  type HistoryCheck,
  type HistoryReport,
} from './check-history.ts';
export type { ConformanceCase, EngineUnderTest, PolicyConformanceOptions, PolicyUnderTest } from './conformance.ts';
export { engineConformance } from './engine-conformance.ts';
export { type History, type HistorySink, historyFile, recordHistory } from './record-history.ts';
export { type StoreConformanceOptions, storeConformance } from './store-conformance.ts';
export { trainerConformance } from './trainer-conformance.ts';
export {
  manifestOf,
  randomTrajectory,
  type Script,
  type ScriptedEngine,
  scriptedEngine,
  scriptedLogprob,
} from './trajectories.ts';
