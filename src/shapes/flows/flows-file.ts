/**
 * Flows chosen by name (`--flow`), either registered by the entry or listed in a flows file: a YAML list whose items have `name: x`,
 * `_target_: ./file.ts#Export` and any further keys, which are the flow's config. Reports all mistakes together.
 */
import { readFile } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Workflow } from '../../core/contracts.ts';
import { describeValue } from '../../core/describe.ts';
import { messageOf, TrainyardError, tried } from '../../core/errors.ts';
import { isObject } from '../../core/json.ts';
import { importEntry, inspectEntry, together } from '../../rollout/discovery.ts';
// Registers the flow that is available to every entry.
import { SINGLE_STEP } from './agent-flow-base.ts';
import { checkFlow, FLOW_NAME, flowRegistry, type RegisteredFlow } from './flow-registry.ts';
import { flowWorkflow } from './flow-workflow.ts';

type Inspected = Awaited<ReturnType<typeof inspectEntry>>;

const TARGET = /^(\.{1,2}\/[^#?]+\.(?:ts|mts|js|mjs))#([A-Za-z_$][\w$]*)$/;

interface ConfiguredFlow extends RegisteredFlow {
  readonly file: string;
}

/** Inspects the entry of a run with `--flow`. The grader is the entry's or, if the flows file is the entry, that of the flow's module. */
export async function inspectFlow(entry: string, flow: string, flows: string | undefined): Promise<Inspected> {
  try {
    const configured = flows === undefined ? [] : await readFlowsFile(flows);
    const registry = flowRegistry(configured);
    const module = entry === flows ? configured.find(({ name }) => name === flow)?.file : entry;
    if (module !== undefined) {
      const inspected = await inspectEntry(module, () => flowWorkflow(registry.flow(flow), registry));
      const by = [import.meta.url, resolve(entry), flow, flows === undefined ? '' : resolve(flows)] as const;
      const flowModule = { url: pathToFileURL(resolve(module)).href, exportName: flow, by };
      return { ...inspected, ...(inspected.entry && { entry: { ...inspected.entry, flowModule } }) };
    }
    registry.flow(flow);
    throw new TrainyardError('USAGE', `the flow ${flow} is not in ${flows}`, 'give the entry that registers it');
  } catch (thrown) {
    if (thrown instanceof TrainyardError) return { problems: [thrown] };
    throw thrown;
  }
}

/** The same, in a process of the workflow. */
export async function workflowNamed(entry: string, flow: string, flows: string): Promise<Workflow> {
  const { entry: found, problems } = await inspectFlow(entry, flow, flows || undefined);
  if (found === undefined) throw together(problems);
  return found.workflow;
}

/** For an entry that exports no workflow but registers flows: adds how to choose one. */
export function withFlowHint(problem: TrainyardError): TrainyardError {
  const names = flowRegistry().names.filter((name) => name !== SINGLE_STEP);
  if (problem.code !== 'WORKFLOW_NOT_FOUND' || names.length === 0) return problem;
  const hint = `it registers flows: choose one with --flow ${names.join(' or --flow ')}`;
  return new TrainyardError(problem.code, problem.message, hint);
}

/** Throws CONFIG_INVALID with everything wrong in the file, or ENTRY_UNLOADABLE if a module cannot be imported. */
export async function readFlowsFile(path: string): Promise<readonly ConfiguredFlow[]> {
  const rows = await rowsIn(path);
  const mistakes: string[] = [];
  const targets = rows.flatMap((row, index) => {
    try {
      return [targetIn(row, path)];
    } catch (thrown) {
      mistakes.push(`item ${index + 1}: ${messageOf(thrown)}`);
      return [];
    }
  });
  for (const [name, alike] of Map.groupBy(targets, (target) => target.name)) {
    if (alike.length > 1) mistakes.push(`two flows are called ${name}`);
  }
  if (mistakes.length > 0) throw invalid(path, mistakes.join('; also: '));
  const loaded = await Promise.allSettled(targets.map(load));
  const refused = loaded.flatMap((one) => (one.status === 'rejected' ? [one.reason as TrainyardError] : []));
  if (refused.length > 0) throw together(refused);
  return loaded.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
}

async function rowsIn(path: string): Promise<readonly unknown[]> {
  const text = await readFile(path, 'utf8').catch(() => {
    const hint = 'give --flows a YAML file with a list of flows';
    throw new TrainyardError('FILE_NOT_FOUND', `no flows file at ${path}`, hint);
  });
  // Imported lazily: few users have a flows file, and all would pay for loading the parser.
  const { parseDocument } = await import('yaml');
  const document = parseDocument(text, { stringKeys: true });
  const problems = [...document.errors, ...document.warnings].map(({ message }) => message.split('\n', 1)[0] ?? '');
  if (problems.length > 0) throw invalid(path, [...new Set(problems)].slice(0, 10).join('; also: '));
  const rows: unknown = tried(() => document.toJS());
  if (rows === undefined) throw invalid(path, 'its aliases repeat too much: write out what they stand for');
  if (Array.isArray(rows) && rows.length > 0) return rows;
  throw invalid(path, `expected a list of flows, found ${describeValue(rows)}`);
}

interface Target extends Omit<ConfiguredFlow, 'flow'> {
  readonly exportName: string;
}

function targetIn(row: unknown, path: string): Target {
  if (!isObject(row)) throw new Error(`expected name and _target_, found ${describeValue(row)}`);
  const { name, _target_: target, ...config } = row;
  if (typeof name !== 'string' || !FLOW_NAME.test(name))
    throw new Error(`name: expected letters, digits and . : - _, found ${describeValue(name)}`);
  const [, file, exportName] = TARGET.exec(typeof target === 'string' ? target : '') ?? [];
  if (file === undefined || exportName === undefined)
    throw new Error(`${name}: _target_: expected ./file.ts#Export, found ${describeValue(target)}`);
  const isConfigured = Object.keys(config).length > 0;
  return { name, file: resolve(dirname(path), file), exportName, ...(isConfigured ? { config } : {}) };
}

async function load({ exportName, ...target }: Target): Promise<ConfiguredFlow> {
  const { name, file } = target;
  const module = await importEntry(pathToFileURL(file).href, file);
  const flow = Object.hasOwn(module, exportName) ? module[exportName] : undefined;
  if (flow === undefined) {
    const names = Object.keys(module).join(', ') || 'nothing';
    throw new TrainyardError('WORKFLOW_NOT_FOUND', `flow ${name}: ${file} has no export ${exportName}; it exports ${names}`);
  }
  checkFlow(flow, `flow ${name}: ${exportName}`);
  return { ...target, flow };
}

function invalid(path: string, message: string): TrainyardError {
  return new TrainyardError(
    'CONFIG_INVALID',
    `${path}: ${message}`,
    'write a list of: - name: my_flow, and below it _target_: ./my-flow.ts#MyFlow',
  );
}
