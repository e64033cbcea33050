/**
 * What `trainyard.config.ts` holds. `defineConfig` returns what it is given: it is there so that editors know the names and refuse others.
 * Loads nothing; config-file.ts reads such files.
 */
import type { EvaluationRequest, TrainRequest } from './check-settings.ts';

type AllSettings = Omit<TrainRequest, 'entry' | 'heldOut' | 'run'> & Omit<EvaluationRequest, 'entry'>;

/** Settings by their names in docs/reference/settings.md. A command takes those that it has. Paths are relative to the config file. */
export interface ConfigSettings extends Partial<AllSettings> {
  readonly entry?: string;
}

export interface Config extends ConfigSettings {
  /** Named settings on top of the others, for `--use <name>`. */
  readonly runs?: Readonly<Record<string, ConfigSettings>>;
}

export function defineConfig(config: Config): Config {
  return config;
}
