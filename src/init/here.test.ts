/** Which lines of an agent to change: found in code, not in comments or texts, and never where the policy is used already. */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { placesIn, withoutTexts } from './here.ts';
import { trainyardFor } from './project.ts';

let home = '';
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'trainyard-here-'));
});
afterAll(() => rm(home, { recursive: true }));

async function changesIn(text: string): Promise<readonly string[]> {
  const file = join(home, 'agent.ts');
  await writeFile(file, text);
  return (await placesIn(file)).changes.map(({ line, before, after }) => `${line}: ${before} → ${after}`);
}

it.each([
  ['const a = new OpenAI();', ["1: new OpenAI() → new OpenAI({ apiKey: 'unused', fetch: rolloutFetch })"]],
  [
    'function f() {\n  return new Anthropic({ a: g(1) });\n}',
    ['2: new Anthropic({ a: g(1) }) → new Anthropic(ctx.model().anthropic())'],
  ],
  [
    "import { openai } from '@ai-sdk/openai';\nimport 'ai';\nimport { x } from 'ai';\nx({ model: openai.chat('y') });",
    ["4: openai.chat('y') → policy()"],
  ],
  [
    "import { createOpenAI } from '@ai-sdk/openai';\nimport { x } from 'ai';\nconst my = createOpenAI({});\nx(my('y'));",
    ["4: my('y') → policy()"],
  ],
  ["import { Agent } from '@openai/agents';\nnew Agent({ model: 'gpt-5' });", ["2: model: 'gpt-5' → model: policy()"]],
  [
    "import { Agent } from '@mastra/core/agent';\nnew Agent({ model: 'openai/gpt-5' });",
    ["2: model: 'openai/gpt-5' → model: policy()"],
  ],
  [
    "import { Agent } from '@strands-agents/sdk';\nnew Agent({ model: new OpenAIModel({}) });",
    ['2: new OpenAIModel({}) → new PolicyModel()'],
  ],
  [
    "import { createAgent } from 'langchain';\ncreateAgent({ model: new ChatOpenAI({ model: 'gpt' }) });",
    ["2: new ChatOpenAI({ model: 'gpt' }) → new ChatPolicy()"],
  ],
  ['// new OpenAI()\n/* new OpenAI() */ const a = "new OpenAI()", b = `new OpenAI()`, c = /new OpenAI(x)/;', []],
  ['async (ctx) => { const m = ctx.model(); new OpenAI({ baseURL: m.baseURL }); new OpenAI(ctx.model().openai()); };', []],
])('%j', async (text, expected) => {
  expect(await changesIn(text)).toEqual(expected);
});

it('keeps every place where it is', () => {
  const computed = `$${'{f("z")}'}`;
  const text = `a("\\"x", 'y', \`${computed} t\`, /[/"]/) // c\n/* d\n */ b`;
  const code = withoutTexts(text);
  expect(code).toHaveLength(text.length);
  expect(code.replaceAll(/[ \n]+/g, ' ')).toBe(`a( , , ${computed} , ) b`);
});

it('depends on this version, or on where this Trainyard comes from', async () => {
  const root = join(home, 'node_modules', 'trainyard');
  const lock = (resolved: string): string => JSON.stringify({ packages: { 'node_modules/trainyard': { resolved } } });
  await mkdir(root, { recursive: true });
  const project = join(home, 'demo');
  expect(trainyardFor(project, root)).toMatch(/^\d+\.\d+\.\d+/);
  await writeFile(join(home, 'node_modules', '.package-lock.json'), lock('file:../trainyard-0.1.0.tgz'));
  expect(trainyardFor(project, root)).toBe('file:../../trainyard-0.1.0.tgz');
  expect(trainyardFor(project, join(home, 'clone'))).toBe('file:../clone');
});
