/**
 * Which lines of an agent's code to change so that its model is the policy. Finds constructions of clients and models in a file and in what it
 * imports by relative paths, by a scan that ignores comments and texts; a package without a compiler has no syntax tree, so what is renamed or
 * computed is not seen. Changes nothing.
 */
import { existsSync } from 'node:fs';
import { TrainyardError } from '../core/errors.ts';
import { sourceFiles } from '../processes/user-modules.ts';
import { shortPath, usualHeldOut, usualTasks } from '../settings/settings.ts';

interface Change {
  readonly file: string;
  readonly line: number;
  readonly before: string;
  readonly after: string;
  /** An import that the line needs. */
  readonly add?: string;
}

/** What the model becomes in files that import a package, and from where. The first that fits. */
const FRAMEWORKS: readonly (readonly [imports: RegExp, model: string, from: string])[] = [
  [/^@mastra\//, 'policy()', 'trainyard/mastra'],
  [/^@openai\/agents/, 'policy()', 'trainyard/openai-agents'],
  [/^@strands-agents\//, 'new PolicyModel()', 'trainyard/strands'],
  [/^(?:langchain$|@langchain\/)/, 'new ChatPolicy()', 'trainyard/langchain'],
  [/^ai$/, 'policy()', 'trainyard/ai-sdk'],
];
const CLIENT = /\bnew\s+(?:Azure)?(OpenAI|Anthropic)\s*\(/g;
const MODEL_CLASS =
  /\bnew\s+(?:Chat(?:OpenAI|Anthropic|GoogleGenerativeAI|Ollama)|(?:OpenAI|Anthropic|Bedrock|Google)Model)\s*\(/g;
const READY =
  /\bnew (?:PolicyModel|ChatPolicy)\(|\bmodel:\s*policy\(|\bfetch:\s*rolloutFetch\b|\bctx\.model\(|\bredirectModelIds\(/g;
const WORKFLOW = /\b(?:define|agent)Workflow\s*\(|\bextends (?:Agent|Rollout)?Workflow\b|\bextends AgentFlowBase\b/;

export const LOOKED_FOR =
  "new OpenAI(…), new Anthropic(…), openai('…') and other providers of @ai-sdk/*, new ChatOpenAI(…) and other models of LangChain and Strands, and model: '…' for AI SDK, OpenAI Agents, LangChain, Strands and Mastra";

export async function placesIn(
  entry: string,
): Promise<{ readonly changes: readonly Change[]; readonly ready: readonly string[]; readonly isWorkflow: boolean }> {
  const changes: Change[] = [];
  const ready: string[] = [];
  let isWorkflow = false;
  let files = 0;
  for await (const { file, text } of sourceFiles([entry])) {
    files++;
    if (file.includes('/node_modules/') || !/\.[cm]?[jt]sx?$/.test(file)) continue;
    const code = withoutTexts(text);
    changes.push(...changesIn(shortPath(file), text, code));
    ready.push(...[...code.matchAll(READY)].map(({ index }) => `${shortPath(file)}:${lineOf(text, index)}`));
    isWorkflow ||= WORKFLOW.test(code);
  }
  if (files > 0) return { changes, ready: [...new Set(ready)], isWorkflow };
  throw new TrainyardError('FILE_NOT_FOUND', `no file at ${entry}`, 'give --here the file of your agent');
}

function changesIn(file: string, text: string, code: string): readonly Change[] {
  const found: (readonly [start: number, end: number, change: Change])[] = [];
  const add = (start: number, end: number, after: string, needs?: string): void => {
    const before = withoutSecrets(text.slice(start, end).replaceAll(/\s+/g, ' '));
    // Inside another place, or with the policy already.
    if (found.some(([from, to]) => start < to && end > from) || /\bctx\.model\(|\.baseURL\b|\brolloutFetch\b/.test(before))
      return;
    const more = needs === undefined || text.includes(needs) ? {} : { add: needs };
    found.push([start, end, { file, line: lineOf(text, start), before, after, ...more }]);
  };
  const imports = [...text.matchAll(/\bfrom\s*(['"])([^'"\n]+)\1/g)].filter(({ index }) => code.startsWith('from', index));
  for (const { 1: name = '', index } of code.matchAll(CLIENT)) {
    // Braces that are open: inside the workflow there is a rollout, at the top of a file there is not yet.
    const isOnce = code.slice(0, index).split('{').length === code.slice(0, index).split('}').length;
    const [after, needs] = isOnce
      ? [`new ${name}({ apiKey: 'unused', fetch: rolloutFetch })`, "import { rolloutFetch } from 'trainyard';"]
      : [`new ${name}(ctx.model().${name.toLowerCase()}())`];
    add(index, callEnd(code, index), after, needs);
  }
  const [, model, from] = FRAMEWORKS.find(([name]) => imports.some(({ 2: path = '' }) => name.test(path))) ?? [];
  if (model !== undefined) {
    const needs = `import { ${model.replaceAll(/^new |\(\)$/g, '')} } from '${from}';`;
    for (const { index } of [...code.matchAll(MODEL_CLASS), ...providerCalls(code, imports)])
      add(index, callEnd(code, index), model, needs);
    for (const { 0: head, 1: value = '', index } of text.matchAll(/\bmodel\s*:\s*(['"`][^'"`\n]*['"`])/g)) {
      const isCode = code.startsWith('model', index) && !/\.create\(\s*\{[^}]*$/.test(code.slice(0, index));
      if (isCode && value !== '') add(index, index + head.length, `model: ${model}`, needs);
    }
  }
  return found.map(([, , change]) => change).toSorted((a, b) => a.line - b.line);
}

/** `openai('…')`, `anthropic.chat('…')`: providers of the AI SDK, imported or made here. */
function providerCalls(code: string, imports: readonly RegExpExecArray[]): readonly RegExpExecArray[] {
  const ofSdk = imports.filter(({ 2: path }) => path?.startsWith('@ai-sdk/'));
  const lists = ofSdk.map(({ index }) => /\{([^{}]*)\}\s*$/.exec(code.slice(0, index))?.[1] ?? '');
  const all = lists.flatMap((list) => list.match(/\w+(?=\s*(?:,|$))/g) ?? []);
  const factories = all.filter((name) => /^create[A-Z]/.test(name));
  const made = factories.flatMap((name) =>
    [...code.matchAll(new RegExp(`(\\w+)\\s*=\\s*${name}\\s*\\(`, 'g'))].map(([, one]) => one),
  );
  const names = [...all.filter((name) => !factories.includes(name)), ...made].join('|');
  return names === '' ? [] : [...code.matchAll(new RegExp(`(?<![.\\w])(?:${names})(?:\\.\\w+)?\\s*\\(`, 'g'))];
}

const lineOf = (text: string, index: number): number => text.slice(0, index).split('\n').length;

/** After the parenthesis that closes the first one. */
function callEnd(code: string, start: number): number {
  let depth = 0;
  for (let i = code.indexOf('(', start); i < code.length; i++) {
    if (code[i] === '(') depth++;
    if (code[i] === ')' && --depth === 0) return i + 1;
  }
  return code.length;
}

const TEXTS =
  /\/\/.*|\/\*[\s\S]*?\*\/|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|`(?:\\[\s\S]|\$\{[^}]*\}|[^`\\])*`|(?<=[=(,:[!&|?{};]\s*)\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n[])+\//g;

/** Comments and what texts hold become spaces, so that places stay the same. What is computed in a template stays. */
export function withoutTexts(text: string): string {
  return text.replaceAll(TEXTS, (part) =>
    part.replaceAll(/\$\{[^}]*\}|[^\n]/g, (one) => (one.length > 1 && part.startsWith('`') ? one : ' '.repeat(one.length))),
  );
}

/** A config for the agent, and tasks to replace by one's own, as far as they are not there. */
export function missingFiles(entry: string, hasConfig: boolean): Readonly<Record<string, string>> {
  const row = (a: number, b: number): string => `${JSON.stringify({ prompt: `What is ${a} + ${b}?`, answer: String(a + b) })}\n`;
  const rows = (from: number, count: number): string =>
    Array.from({ length: count }, (_, i) => row(from + i, 2 * i + 3)).join('');
  const config = `import { defineConfig } from 'trainyard';\n\nexport default defineConfig({\n  entry: ${JSON.stringify(entry)},\n});\n`;
  const all = { 'trainyard.config.ts': config, [usualTasks(entry)]: rows(11, 8), [usualHeldOut(entry)]: rows(60, 4) };
  return Object.fromEntries(
    Object.entries(all).filter(([path]) => !existsSync(path) && !(hasConfig && path === 'trainyard.config.ts')),
  );
}

/** Texts beside a name may be keys; a model's name is none. */
function withoutSecrets(code: string): string {
  return code.replaceAll(/([\w-]+['"]?\s*:\s*)(['"`])(?:\\.|(?!\2).)*\2/g, (whole, key: string) =>
    /^model\b/.test(key) ? whole : `${key}'…'`,
  );
}
