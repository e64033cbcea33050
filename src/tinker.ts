/** A client of the Tinker API for programs of one's own: sample and train a model at any server that speaks it. */
export { TinkerEngine, type TinkerEngineParts } from './engine/tinker.ts';
export { type ConnectionSettings, TinkerConnection } from './tinker/connection.ts';
export { TinkerTrainer, type TinkerTrainerParts } from './trainer/tinker.ts';
