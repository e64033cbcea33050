/**
 * The entry of a run whose workflow is a flow chosen by name: from a flows file, or registered by the entry. The grader is the entry's;
 * without an entry, that of the module in which the flow stands.
 */
import { flowRegistry } from '../flows/flow-registry.ts';
import { agentNameOf, flowWorkflow } from '../flows/flow-workflow.ts';
import { readFlowsFile } from '../flows/flows-file.ts';
// Registers the flow that is there for every entry.
import '../flows/single-step-flow.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Task } from '../core/types.ts';
import { type Entry, inspectEntry } from '../rollout/discovery.ts';

export interface FlowFiles {
  /** The flows file itself, where there is no other. */
  readonly entry: string;
  readonly flow: string;
  readonly flows?: string | undefined;
}

export interface InspectedFlow {
  readonly entry?: Entry;
  readonly problems: readonly TrainyardError[];
  /** What is wrong with the flows that tasks ask for. */
  problemsOf(tasks: readonly Task[]): readonly TrainyardError[];
}

export async function inspectFlow({ entry, flow, flows }: FlowFiles): Promise<InspectedFlow> {
  const none = (): readonly TrainyardError[] => [];
  try {
    const configured = flows === undefined ? [] : await readFlowsFile(flows);
    const registry = flowRegistry(configured);
    const module = entry === flows ? configured.find(({ name }) => name === flow)?.file : entry;
    if (module === undefined) {
      registry.flow(flow);
      throw new TrainyardError('USAGE', `the flow ${flow} is not in ${flows}`, { hint: 'give the entry that registers it' });
    }
    const found = await inspectEntry(module, () => flowWorkflow(registry.flow(flow), registry));
    const problemsOf = (tasks: readonly Task[]): readonly TrainyardError[] => flowProblems(tasks, [flow, ...registry.names]);
    return { ...found, problemsOf };
  } catch (thrown) {
    if (thrown instanceof TrainyardError) return { problems: [thrown], problemsOf: none };
    throw thrown;
  }
}

/** An entry of which no flow was asked for. Where it exports no workflow but registers flows, it is told how to choose one. */
export async function inspectUnnamed(entry: string): Promise<Awaited<ReturnType<typeof inspectEntry>>> {
  const before = new Set(flowRegistry().names);
  const found = await inspectEntry(entry);
  const own = flowRegistry().names.filter((name) => !before.has(name));
  if (own.length === 0) return found;
  const problems = found.problems.map((problem) =>
    problem.code === 'WORKFLOW_NOT_FOUND'
      ? new TrainyardError(problem.code, problem.message, {
          hint: `it registers flows: choose one with --flow ${own.join(' or --flow ')}`,
        })
      : problem,
  );
  return { ...found, problems };
}

/** What is wrong with the flows that tasks ask for. `names`: those there are. */
export function flowProblems(tasks: readonly Task[], names: readonly string[]): readonly TrainyardError[] {
  const strange = tasks.find(({ metadata }) => agentNameOf(metadata) === undefined && hasAgentName(metadata));
  const asked = new Set(tasks.flatMap(({ metadata }) => agentNameOf(metadata) ?? []));
  const unknown = [...asked].filter((name) => !names.includes(name));
  return [
    ...(strange === undefined ? [] : [`the agent_name of task ${strange.id} is no text`]),
    ...(unknown.length === 0
      ? []
      : [`tasks ask for the flows ${unknown.join(', ')} by agent_name; there are ${[...new Set(names)].join(', ')}`]),
  ].map((message) => new TrainyardError('DATASET_INVALID', message, { hint: 'register them, or list them in the flows file' }));
}

function hasAgentName(metadata: Task['metadata']): boolean {
  return typeof metadata === 'object' && metadata !== null && Object.hasOwn(metadata, 'agent_name');
}
