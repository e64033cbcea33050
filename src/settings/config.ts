/**
 * What `trainyard.config.ts` holds. `defineConfig` returns what it is given: it is there so that editors know the names and refuse others.
 * Loads nothing; config-file.ts reads such files.
 */
import type { Limits } from '../core/types.ts';
import type { EvaluationSettings, TrainSettings } from './check-settings.ts';

type AllSettings = Omit<TrainSettings, 'entry' | 'limits' | 'heldOut'> & Omit<EvaluationSettings, 'entry' | 'limits'>;

/** Settings by their names in docs/reference/settings.md. A command takes those that it has. Paths are relative to the config file. */
export interface ConfigSettings extends Partial<AllSettings> {
  readonly entry?: string;
  readonly limits?: Partial<Limits>;
}

export interface Config extends ConfigSettings {
  /** Named settings on top of the others, for `--use <name>`. */
  readonly runs?: Readonly<Record<string, ConfigSettings>>;
}

export function defineConfig(config: Config): Config {
  return config;
}
