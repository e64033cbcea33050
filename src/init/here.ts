/**
 * Which lines of an agent's code to change so that its model is the policy. Finds constructions of clients and models in a file and in what it
 * imports by relative paths, by a scan that ignores comments and texts; there is no syntax tree without a compiler, so what is computed or
 * renamed is not seen. Changes nothing.
 */
import { existsSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { sourceFiles } from '../processes/user-modules.ts';
import { shortPath, usualHeldOut, usualTasks } from '../run/settings.ts';

export interface Change {
  readonly file: string;
  readonly line: number;
  readonly before: string;
  readonly after: string;
  /** An import that the line needs. */
  readonly add?: string;
}

/** Frameworks by the packages that a file imports: what the model becomes, and from where. The first that fits. */
const FRAMEWORKS = [
  [/^@mastra\//, 'policy()', 'trainyard/mastra'],
  [/^@openai\/agents/, 'policy()', 'trainyard/openai-agents'],
  [/^@strands-agents\//, 'new PolicyModel()', 'trainyard/strands'],
  [/^(?:langchain|@langchain\/)/, 'new ChatPolicy()', 'trainyard/langchain'],
  [/^ai$/, 'policy()', 'trainyard/ai-sdk'],
] as const;

/** Constructions, and what they become where a rollout is at hand, and where the client is made once. */
const CLIENTS: Readonly<Record<string, readonly [inside: string, once: string]>> = {
  OpenAI: ['new OpenAI(ctx.model().openai())', "new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })"],
  AzureOpenAI: ['new OpenAI(ctx.model().openai())', "new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })"],
  Anthropic: ['new Anthropic(ctx.model().anthropic())', "new Anthropic({ apiKey: 'unused', fetch: rolloutFetch })"],
};
const MODEL_CLASSES =
  /\bnew\s+(?:Chat(?:OpenAI|Anthropic|GoogleGenerativeAI|Ollama)|(?:OpenAI|Anthropic|Bedrock|Google)Model)\s*\(/g;
const READY =
  /\bnew (?:PolicyModel|ChatPolicy)\(|\bmodel:\s*policy\(|\bfetch:\s*rolloutFetch|\bctx\.model\(|\bredirectModelIds\(/g;

export const LOOKED_FOR = [
  ...['new OpenAI(', 'new AzureOpenAI(', 'new Anthropic(', "openai('…') and other providers of @ai-sdk/*", 'new ChatOpenAI('],
  'model: in the options of AI SDK, OpenAI Agents, Strands, LangChain and Mastra',
];

export async function placesIn(
  entry: string,
): Promise<{ readonly changes: readonly Change[]; readonly ready: readonly string[]; readonly isWorkflow: boolean }> {
  if (!(await stat(entry).catch(() => undefined))?.isFile()) {
    throw new TrainyardError('FILE_NOT_FOUND', `no file at ${entry}`, { hint: 'give --here the file of your agent' });
  }
  const changes: Change[] = [];
  const ready: string[] = [];
  let isWorkflow = false;
  for await (const { file, text } of sourceFiles([entry])) {
    if (file.includes('/node_modules/') || !/\.[cm]?[jt]sx?$/.test(file)) continue;
    const code = withoutTexts(text);
    changes.push(...changesIn(shortPath(file), text, code));
    for (const { index } of code.matchAll(READY)) ready.push(`${shortPath(file)}:${lineOf(text, index)}`);
    isWorkflow ||=
      /\b(?:defineWorkflow|agentWorkflow)\s*\(|\bextends (?:AgentWorkflow|Workflow|RolloutWorkflow|AgentFlowBase)\b/.test(code);
  }
  const order = (a: Change, b: Change): number => a.file.localeCompare(b.file) || a.line - b.line;
  return { changes: changes.toSorted(order), ready: [...new Set(ready)], isWorkflow };
}

function changesIn(file: string, text: string, code: string): readonly Change[] {
  const imports = [...text.matchAll(/\bfrom\s*(['"])([^'"\n]+)\1/g)].filter(({ index }) => code.startsWith('from', index));
  const [, model, path] = FRAMEWORKS.find(([name]) => imports.some(({ 2: from = '' }) => name.test(from))) ?? [];
  const found: { readonly start: number; readonly end: number; readonly change: Change }[] = [];
  const add = (start: number, end: number, after: string, more?: string): void => {
    if (found.some((one) => start < one.end && end > one.start)) return;
    const before = text.slice(start, end).replaceAll(/\s+/g, ' ');
    if (/\bctx\.model\(|\.baseURL\b|\brolloutFetch\b/.test(before)) return;
    const change = {
      file,
      line: lineOf(text, start),
      before,
      after,
      ...(more !== undefined && !text.includes(more) && { add: more }),
    };
    found.push({ start, end, change });
  };
  for (const { 1: name = '', index } of code.matchAll(/\bnew\s+(OpenAI|AzureOpenAI|Anthropic)\s*\(/g)) {
    const isOnce = depthAt(code, index) === 0;
    add(
      index,
      callEnd(code, index),
      CLIENTS[name]![isOnce ? 1 : 0],
      isOnce ? "import { rolloutFetch } from 'trainyard';" : undefined,
    );
  }
  if (model === undefined) return found.map(({ change }) => change);
  const line = `import { ${model.replace(/^new |\(\)$/g, '')} } from '${path}';`;
  const providers = imports
    .filter(({ 2: from = '' }) => from.startsWith('@ai-sdk/'))
    .flatMap(({ index }) =>
      [...(/import\s*\{([^}]*)\}\s*$/.exec(code.slice(0, index))?.[1] ?? '').matchAll(/(\w+)\s*(?:,|$)/g)].map(
        ([, name]) => name,
      ),
    );
  const made = [...code.matchAll(/\b(?:const|let)\s+(\w+)\s*=\s*create[A-Z]\w*\s*\(/g)].map(([, name]) => name);
  const names = [...providers, ...made].filter((name) => name !== undefined && !name.startsWith('create'));
  const calls =
    names.length === 0 ? [] : [...code.matchAll(new RegExp(`(?<![.\\w])(?:${names.join('|')})(?:\\.\\w+)?\\s*\\(`, 'g'))];
  for (const { index } of [...code.matchAll(MODEL_CLASSES), ...calls]) add(index, callEnd(code, index), model, line);
  for (const { 0: head, index } of code.matchAll(/\bmodel\s*:\s*(?=['"`])/g)) {
    const value = /^(['"`])[^'"`]*\1/.exec(text.slice(index + head.length))?.[0] ?? '';
    const isClient = /\b(?:create|stream)\s*\(\s*\{[^}]*$/.test(code.slice(0, index));
    if (value !== '' && !isClient) add(index, index + head.length + value.length, `model: ${model}`, line);
  }
  return found.map(({ change }) => change);
}

const lineOf = (text: string, index: number): number => text.slice(0, index).split('\n').length;

function depthAt(code: string, index: number): number {
  return [...code.slice(0, index)].reduce((depth, character) => depth + Number(character === '{') - Number(character === '}'), 0);
}

/** After the parenthesis that closes the first one. */
function callEnd(code: string, start: number): number {
  let depth = 0;
  for (let i = code.indexOf('(', start); i < code.length; i++) {
    if (code[i] === '(') depth++;
    if (code[i] === ')' && --depth === 0) return i + 1;
  }
  return code.length;
}

/** Comments and what texts hold become spaces, so that places stay the same. Quotes and what is computed in a template stay. */
export function withoutTexts(text: string): string {
  const blank = (part: string): string => part.replaceAll(/[^\n]/g, ' ');
  const token =
    /\/\/.*|\/\*[\s\S]*?\*\/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[\s\S]|\$\{[^}]*\}|[^`\\])*`|(?<=[=(,:[!&|?{};\n]\s*)\/(?![*/])(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\//g;
  return text.replaceAll(token, (part) => {
    if (part.startsWith('`')) return part.replaceAll(/\$\{[^}]*\}|[^`]/g, (one) => (one.startsWith('${') ? one : blank(one)));
    return /^['"]/.test(part) ? part[0] + blank(part.slice(1, -1)) + part.at(-1) : blank(part);
  });
}

/** A config for the agent, and tasks to replace with one's own, as far as they are not there. */
export function missingFiles(entry: string): Readonly<Record<string, string>> {
  const rows = (from: number, count: number): string =>
    Array.from(
      { length: count },
      (_, i) => `${JSON.stringify({ prompt: `What is ${from + i} + ${2 * i + 3}?`, answer: String(from + 3 * i + 3) })}\n`,
    ).join('');
  const config = `import { defineConfig } from 'trainyard';\n\nexport default defineConfig({\n  entry: ${JSON.stringify(entry)},\n});\n`;
  const hasConfig = ['config.ts', 'config.mts', 'config.js', 'config.mjs', 'toml'].some((name) =>
    existsSync(join('.', `trainyard.${name}`)),
  );
  const all = {
    ...(!hasConfig && { 'trainyard.config.ts': config }),
    [usualTasks(entry)]: rows(11, 8),
    [usualHeldOut(entry)]: rows(60, 4),
  };
  return Object.fromEntries(Object.entries(all).filter(([path]) => !existsSync(path) && existsSync(dirname(path))));
}
