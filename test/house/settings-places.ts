/**
 * How many places declare one setting of runs, generated pages and uses such as `settings.steps` apart. A declaration is a flag with its
 * placeholder (`--steps <n>`), a member of a literal or an interface in src/settings that no value is read into, or a text in a list of names.
 * The aim is one: the row in the table of settings. Servers have flags of their own, and so do the commands that look at runs.
 */
import { Visitor } from 'vite';
import { flagOf, rowsOf } from '../../src/settings/setting-rows.ts';
import type { Source } from './sources.ts';

/** Where settings of runs are declared or listed. */
const PLACES = /^src\/(?:settings|cli|run|training|evaluation)\//;
const SERVERS = 'src/settings/server-defaults.ts';
/** Flags of other commands with the name of a setting. */
const OTHERS = ['group', 'rows', 'run', 'entry', 'tasks', 'temperature', 'lora-rank', 'context', 'call-tokens', 'model', 'store'];
const OF_OTHERS: ReadonlySet<string> = new Set([...OTHERS, 'threads', 'concurrency']);

/** Name → the files that declare it. */
export function settingsPlaces(sources: readonly Source[]): ReadonlyMap<string, readonly string[]> {
  const declaring = sources.filter(({ path }) => PLACES.test(path) && path !== SERVERS);
  const declared = declaring.map((source) => ({ path: source.path, names: declaredIn(source) }));
  const isIn = (names: ReadonlySet<string>, name: string, flag: string): boolean =>
    names.has(`member ${name.slice(name.indexOf('.') + 1)}`) ||
    names.has(`listed ${name}`) ||
    (names.has(`flag ${flag}`) && !OF_OTHERS.has(flag));
  const rows = rowsOf().filter((row) => flagOf(row) !== '');
  return new Map(
    rows.map((row) => [row.name, declared.flatMap(({ path, names }) => (isIn(names, row.name, flagOf(row)) ? [path] : []))]),
  );
}

function declaredIn({ path, program }: Source): ReadonlySet<string> {
  const names = new Set<string>();
  const member = (key: object): void =>
    void (path.startsWith('src/settings/') && 'name' in key && names.add(`member ${key.name}`));
  new Visitor({
    Literal: ({ value }) => {
      const flag = typeof value === 'string' ? /^--([a-z][\w-]*) [<[]/.exec(value)?.[1] : undefined;
      if (flag !== undefined) names.add(`flag ${flag}`);
    },
    ObjectExpression: ({ properties }) => {
      for (const one of properties) if (one.type === 'Property' && !one.shorthand && !isRead(one.value as never)) member(one.key);
    },
    TSInterfaceBody: ({ body }) => {
      for (const one of body) if (one.type === 'TSPropertySignature') member(one.key);
    },
    ArrayExpression: ({ elements }) => {
      for (const one of elements) if (one?.type === 'Literal' && typeof one.value === 'string') names.add(`listed ${one.value}`);
    },
  }).visit(program);
  return names;
}

/** Whether the value is another one's, as in `model: resolve(path)`. What makes a row or a schema is not. */
function isRead(value: { readonly type: string; readonly callee?: { readonly type: string; readonly name?: string } }): boolean {
  const { type, callee } = value;
  if (type === 'CallExpression' && callee?.type === 'Identifier')
    return !/^(?:setting|optional|derived)$/.test(callee.name ?? '');
  return /^(?:Member|Logical|Conditional|Binary)Expression$/.test(type);
}
