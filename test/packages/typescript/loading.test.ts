/** TypeScript that Node alone does not load, with the tsx that a user would have installed, in every process that imports an entry. */
import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { needsTransform, sourceDigests } from '../../../src/processes/user-modules.ts';
import { ROOT, trainyard, useScratch } from '../../cli/command.ts';

const home = useScratch();
const TASKS = join(ROOT, 'examples/shop/train.jsonl');

/** A folder with tsx installed. */
function project(name: string, files: Readonly<Record<string, string>>): string {
  const folder = join(home.dir, name);
  mkdirSync(join(folder, 'node_modules'), { recursive: true });
  symlinkSync(join(import.meta.dirname, 'node_modules/tsx'), join(folder, 'node_modules/tsx'));
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, file)), { recursive: true });
    writeFileSync(join(folder, file), text);
  }
  return folder;
}

const AS_PEOPLE_HAVE_IT = {
  'tsconfig.json': '{ // kept\n "extends": "./base", "compilerOptions": { "experimentalDecorators": true, "jsx": "react", }, }',
  'base.json': '{ "compilerOptions": { "baseUrl": ".", "paths": { "@lib/*": ["lib/*"] } } }',
  'lib/agent.ts': `import { Kind } from './kind';
    function mark(text: string) { return (Class: any) => { Class.marked = text; }; }
    @mark('decorated')
    export class Agent { static marked: string; constructor(readonly kind: Kind, private readonly label: string) {} }`,
  'lib/kind.ts': `export enum Kind { Short = 'short' }`,
  'lib/dir/index.ts': `export namespace Names { export const label = 'dir'; } export const label = Names.label;`,
  'lib/page.tsx': 'const React = { createElement: (tag: string) => tag };\nexport const page = <b />;',
};

const agent = (options: string): string => `import { basename } from 'node:path';
  import { ambientModel, defineGrader, defineWorkflow } from 'trainyard';
  import { Agent } from './lib/agent.js';
  import { Kind } from '@lib/kind';
  import { label } from './lib/dir';
  import { page } from 'lib/page';
  const here = () => basename(process.argv[1]!, '.ts');
  export default defineWorkflow(async (ctx) => {
    await ambientModel().generate({ messages: ctx.task.prompt as never, maxTokens: 4 });
    return [new Agent(Kind.Short, label).kind, Agent.marked, label, page, here()].join(' ');
  }, ${options});
  export const grader = defineGrader(({ output }) => (here() === 'child' && String(output).startsWith(Kind.Short) ? 0.75 : 0));`;

describe('TypeScript as people have it', () => {
  it.each([
    ['{}', 'main', 'module'],
    ["{ isolation: 'process' }", 'workflow-child', 'module'],
    // Without "type": "module" tsx makes CommonJS of it; `ambientModel` shows that there is still one trainyard.
    ['{}', 'main', 'commonjs'],
  ])('loads in the command, in grader processes and with %s in %s (%s)', async (options, where, type) => {
    const folder = project(`${where}-${type}`, { ...AS_PEOPLE_HAVE_IT, 'agent.ts': agent(options) });
    if (type === 'commonjs') {
      writeFileSync(join(folder, 'package.json'), '{}');
      symlinkSync(ROOT, join(folder, 'node_modules/trainyard'));
    }
    const ended = await trainyard('try', join(folder, 'agent.ts'), '--tasks', TASKS);
    expect(ended).toMatchObject({ code: 0 });
    expect(ended.stdout).toContain(`output: short decorated dir b ${where}`);
    expect(ended.stdout).toContain('reward 0.75');
  });

  it('loads in the import of LocalBackend', () => {
    const folder = project('backend', { ...AS_PEOPLE_HAVE_IT, 'agent.ts': agent('{}') });
    const script = `import { LocalBackend } from 'trainyard/osmosis';
      await using backend = new LocalBackend({ workflow: './agent.ts:default', grader: './agent.ts:grader' });
      await backend.start(); console.log('started');`;
    const args = ['--conditions=trainyard-source', '--input-type=module', '-e', script];
    expect(execFileSync(process.execPath, args, { cwd: folder, encoding: 'utf8' })).toContain('started');
  });

  it('is fingerprinted file by file, and the first thing that Node cannot load is named with its line', async () => {
    const folder = project('sources', { ...AS_PEOPLE_HAVE_IT, 'agent.ts': agent('{}') });
    const digests = await sourceDigests(folder, [join(folder, 'agent.ts')]);
    expect(Object.keys(digests)).toEqual(['agent.ts', 'lib/agent.ts', 'lib/dir/index.ts', 'lib/kind.ts', 'lib/page.tsx']);
    expect(await needsTransform(`file://${folder}/agent.ts`)).toBe('./lib/agent.js (agent.ts:3)');
    expect(await needsTransform(`file://${folder}/lib/agent.ts`)).toBe('a decorator (agent.ts:3)');
  });

  it('has decorators of the standard too: @register names a flow', async () => {
    const text = `import { AgentFlowBase, register } from 'trainyard/agent-flow';
      @register('typed')
      export class Typed extends AgentFlowBase { async run(params: any, { trajectoryUid, promptUid, prompt: messages }: any) {
        const { promptIds, responseIds } = await this.gatewayGenerate({ ...params, trajectoryUid, promptUid, messages });
        await this.gatewaySubmitSteps([{ promptIds, responseIds, trajectoryUid, promptUid, reward: 0.25, isLast: true }]);
        return 1;
      } }`;
    for (const experimentalDecorators of [true, false]) {
      const tsconfig = JSON.stringify({ compilerOptions: { experimentalDecorators } });
      const folder = project(`flow-${experimentalDecorators}`, { 'flow.ts': text, 'tsconfig.json': tsconfig });
      const ended = await trainyard('try', join(folder, 'flow.ts'), '--flow', 'typed', '--tasks', TASKS);
      expect(ended).toMatchObject({ code: 0, stdout: expect.stringContaining('reward 0.25') });
    }
  });

  it('or JavaScript: an agent after AReaL without a wrapper runs in a process of its own, too', async () => {
    const text = `export default class Mine { async run(data, { baseURL, apiKey }) {
      const body = JSON.stringify({ model: 'policy', messages: data.messages, max_tokens: 2 });
      const headers = { authorization: 'Bearer ' + apiKey, 'content-type': 'application/json' };
      await fetch(baseURL + '/chat/completions', { method: 'POST', headers, body });
      return process.argv[1].includes('workflow-child') ? 0.75 : 0.25;
    } }`;
    const entry = join(project('bare', { 'agent.ts': text }), 'agent.ts');
    const ended = await trainyard('try', entry, '--tasks', TASKS, '--isolation', 'process');
    expect(ended).toMatchObject({ code: 0, stdout: expect.stringContaining('reward 0.75') });
  });

  it('stays with Node where Node can load it', async () => {
    const folder = project('plain', {});
    cpSync(join(ROOT, 'examples/shop/agent.ts'), join(folder, 'agent.ts'));
    expect(await needsTransform(`file://${folder}/agent.ts`)).toBeUndefined();
  });
});
