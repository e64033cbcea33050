/**
 * The flows file, a YAML list of `- name: x` with `_target_: ./file.ts#Export` and whatever else its config holds.
 *
 * Importing a target runs it, so a target is a file of this project and nothing else: relative to the flows file, and really inside the
 * folder of the nearest package.json, whatever links say. YAML is read as plain data: no aliases, no tags, no name twice.
 *
 * All mistakes are told together.
 */
import { existsSync, realpathSync } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { dirname, join, relative, resolve, sep } from 'node:path';
import { pathToFileURL } from 'node:url';
import { describeValue } from '../core/describe.ts';
import { messageOf, TrainyardError } from '../core/errors.ts';
import { together } from '../rollout/discovery.ts';
import { checkFlow, FLOW_NAME } from './flow-registry.ts';
import type { RegisteredFlow } from './flow-types.ts';

const MOST_BYTES = 1_000_000;
const TARGET = /^(\.{1,2}\/[^#?]+\.(?:ts|mts|js|mjs))#([A-Za-z_$][\w$]*)$/;
const FORBIDDEN_KEYS: readonly string[] = ['__proto__', 'constructor', 'prototype', '<<'];

/** A flow of the file, and where its class is: a grader may stand beside it. */
export interface ConfiguredFlow extends RegisteredFlow {
  readonly file: string;
}

/** Throws CONFIG_INVALID with everything that is wrong with the file, or ENTRY_UNLOADABLE for a module that cannot be imported. */
export async function readFlowsFile(path: string): Promise<readonly ConfiguredFlow[]> {
  const rows = await rowsIn(await textOf(path), path);
  const mistakes: string[] = [];
  const project = projectOf(path);
  const targets = rows.flatMap((row, index) => {
    try {
      return [targetIn(row, path, project)];
    } catch (thrown) {
      mistakes.push(`item ${index + 1}: ${messageOf(thrown)}`);
      return [];
    }
  });
  const names = targets.map(({ name }) => name);
  for (const name of new Set(names.filter((one, index) => names.indexOf(one) !== index)))
    mistakes.push(`two flows are called ${name}`);
  if (mistakes.length > 0) throw invalid(path, mistakes.join('; also: '));
  const loaded = await Promise.allSettled(targets.map(load));
  const refused = loaded.flatMap((one) => (one.status === 'rejected' ? [one.reason as TrainyardError] : []));
  if (refused.length > 0) throw together(refused);
  return loaded.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []));
}

async function textOf(path: string): Promise<string> {
  const found = await stat(path).catch(() => undefined);
  if (!found?.isFile()) {
    throw new TrainyardError('FILE_NOT_FOUND', `no flows file at ${path}`, {
      hint: 'give --flows a YAML file with a list of flows',
    });
  }
  if (found.size > MOST_BYTES) throw invalid(path, `${found.size} bytes; at most ${MOST_BYTES} are read`);
  return await readFile(path, 'utf8');
}

async function rowsIn(text: string, path: string): Promise<readonly unknown[]> {
  // Here, because every user of the package would wait for it, and few have such a file.
  const { isAlias, isNode, parseDocument, visit } = await import('yaml');
  const document = parseDocument(text, {
    schema: 'core',
    version: '1.2',
    uniqueKeys: true,
    strict: true,
    stringKeys: true,
    merge: false,
  });
  const problems = [...document.errors, ...document.warnings].map(({ message }) => message.split('\n', 1)[0] ?? '');
  visit(document, (_, node) => {
    if (isAlias(node) || (isNode(node) && 'anchor' in node && node.anchor))
      problems.push('anchors and aliases are not read here');
    else if (isNode(node) && node.tag !== undefined) problems.push(`the tag ${node.tag} is not read here`);
  });
  if (problems.length > 0) throw invalid(path, [...new Set(problems)].slice(0, 10).join('; also: '));
  const rows: unknown = document.toJS({ maxAliasCount: 0 });
  if (Array.isArray(rows) && rows.length > 0) return rows;
  throw invalid(path, `expected a list of flows, found ${describeValue(rows)}`);
}

interface Target {
  readonly name: string;
  readonly file: string;
  readonly exportName: string;
  readonly config: Readonly<Record<string, unknown>> | undefined;
}

function targetIn(row: unknown, path: string, project: string): Target {
  if (typeof row !== 'object' || row === null || Array.isArray(row))
    throw new Error(`expected name and _target_, found ${describeValue(row)}`);
  const { name, _target_: target, ...config } = row as Readonly<Record<string, unknown>>;
  if (typeof name !== 'string' || !FLOW_NAME.test(name))
    throw new Error(`name: expected letters, digits and . : - _, found ${describeValue(name)}`);
  const forbidden = Object.keys(row).find((key) => FORBIDDEN_KEYS.includes(key));
  if (forbidden !== undefined) throw new Error(`${name}: the key ${forbidden} is not read here`);
  const [, file, exportName] = TARGET.exec(typeof target === 'string' ? target : '') ?? [];
  if (file === undefined || exportName === undefined) {
    throw new Error(`${name}: _target_: expected ./file.ts#Export, a file of this project, found ${describeValue(target)}`);
  }
  return {
    name,
    file: fileInside(resolve(dirname(path), file), project, name),
    exportName,
    config: Object.keys(config).length === 0 ? undefined : config,
  };
}

function fileInside(file: string, project: string, name: string): string {
  let real: string;
  try {
    real = realpathSync(file);
  } catch {
    throw new Error(`${name}: _target_: there is no ${file}`);
  }
  const inside = relative(realpathSync(project), real);
  const isOutside =
    inside === '' || inside.startsWith('..') || resolve(inside) === inside || inside.split(sep).includes('node_modules');
  if (isOutside) throw new Error(`${name}: _target_: ${file} is not a file of this project (${project})`);
  return real;
}

/** The folder of the nearest package.json above the file, else its own. */
function projectOf(path: string): string {
  const own = dirname(resolve(path));
  for (let folder = own; ; folder = dirname(folder)) {
    if (existsSync(join(folder, 'package.json'))) return folder;
    if (dirname(folder) === folder) return own;
  }
}

async function load({ name, file, exportName, config }: Target): Promise<ConfiguredFlow> {
  let module: Readonly<Record<string, unknown>>;
  try {
    module = (await import(pathToFileURL(file).href)) as Readonly<Record<string, unknown>>;
  } catch (cause) {
    if (cause instanceof TrainyardError) throw cause;
    throw new TrainyardError('ENTRY_UNLOADABLE', `cannot import ${file}: ${messageOf(cause).split('\n', 1)[0]}`, { cause });
  }
  const flow = Object.hasOwn(module, exportName) ? module[exportName] : undefined;
  if (flow === undefined) {
    const names = Object.keys(module).join(', ') || 'nothing';
    throw new TrainyardError('WORKFLOW_NOT_FOUND', `flow ${name}: ${file} has no export ${exportName}; it exports ${names}`);
  }
  checkFlow(flow, `flow ${name}: ${exportName}`);
  return { name, flow, file, ...(config === undefined ? {} : { config }) };
}

function invalid(path: string, message: string): TrainyardError {
  return new TrainyardError('CONFIG_INVALID', `${path}: ${message}`, {
    hint: 'write a list of: - name: my_flow, and below it _target_: ./my-flow.ts#MyFlow',
  });
}
