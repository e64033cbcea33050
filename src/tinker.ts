/** `trainyard/tinker`: a Tinker API client for your own programs, to sample and train a model at any server that speaks it. */

export { TinkerConnection } from './engines/tinker/client/connection.ts';
export type { ConnectionSettings } from './engines/tinker/client/http-client.ts';
export { TinkerEngine, type TinkerEngineParts } from './engines/tinker/client/tinker-engine.ts';
export { TinkerTrainer, type TinkerTrainerParts } from './engines/tinker/client/tinker-trainer.ts';
