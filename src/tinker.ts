/** `trainyard/tinker`: a Tinker API client for your own programs, to sample and train a model at any server that speaks it. */

export { TinkerConnection } from './tinker/client/connection.ts';
export type { ConnectionSettings } from './tinker/client/http-client.ts';
export { TinkerEngine, type TinkerEngineParts } from './tinker/client/tinker-engine.ts';
export { TinkerTrainer, type TinkerTrainerParts } from './tinker/client/tinker-trainer.ts';
