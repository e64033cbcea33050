/** The one config of its kind among a module's exports, checked. What is wrong is told to the module once, whoever asks. */
import type { EntryModule } from '../core/contracts.ts';
import { TrainyardError } from '../core/errors.ts';
import { type AgentWorkflowConfig, type ConfigKind, configKindOf, configMistakes, type GraderConfig } from './config.ts';

interface Configs {
  readonly workflow: AgentWorkflowConfig;
  readonly grader: GraderConfig;
}

const CLASS = { workflow: 'AgentWorkflowConfig', grader: 'GraderConfig' } as const;

/** Two classes of one module share the answer, and the mistake. */
const known = new WeakMap<EntryModule, Map<ConfigKind, unknown>>();

/** Undefined where there is none, or where it is unusable: then the module has been told. */
export function configOf<Kind extends ConfigKind>(kind: Kind, module: EntryModule): Configs[Kind] | undefined {
  const ofModule = known.get(module) ?? new Map<ConfigKind, unknown>();
  known.set(module, ofModule);
  if (!ofModule.has(kind)) ofModule.set(kind, findConfig(kind, module));
  return ofModule.get(kind) as Configs[Kind] | undefined;
}

function findConfig(kind: ConfigKind, module: EntryModule): unknown {
  const found = new Map<unknown, string>();
  for (const [name, value] of module.exports) {
    if (configKindOf(value) === kind && !found.has(value)) found.set(value, name);
  }
  if (found.size > 1) {
    const names = [...found.values()].toSorted().join(', ');
    module.problem(
      new TrainyardError('CONFIG_INVALID', `multiple ${CLASS[kind]} instances found: ${names}; expected at most one`, {
        hint: `keep only one ${CLASS[kind]} instance in the entry module, or move the others to a file of their own`,
      }),
    );
    return undefined;
  }
  for (const [config, name] of found) {
    const mistakes = configMistakes(config as AgentWorkflowConfig);
    if (mistakes.length === 0) return config;
    module.problem(new TrainyardError('CONFIG_INVALID', `${name}: ${mistakes.join('; also: ')}`));
  }
  return undefined;
}
