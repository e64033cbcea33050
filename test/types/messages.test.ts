/** What the compiler says about a mistake names the mistake, in the form that was written. */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { defineWorkflow } from '../../src/core/define.ts';
import { ROOT, useScratch } from '../cli/command.ts';
import { knowsItself } from '../fixtures/system.ts';

const home = useScratch();

async function complaints(code: string): Promise<string> {
  const file = await home.write(
    'agent.ts',
    `import { defineWorkflow } from ${JSON.stringify(join(ROOT, 'src/core/define.ts'))};\n${code}`,
  );
  const flags = [
    ...['--ignoreConfig', '--noEmit', '--strict', '--exactOptionalPropertyTypes', '--allowImportingTsExtensions'],
    ...['--skipLibCheck', '--types', 'node'],
  ];
  const sort = ['--target', 'esnext', '--module', 'nodenext', '--typeRoots', join(ROOT, 'node_modules/@types')];
  return await new Promise((resolve) => {
    execFile(join(ROOT, 'node_modules/.bin/tsc'), [...flags, ...sort, file], { cwd: ROOT }, (_, stdout) => resolve(stdout));
  });
}

it.skipIf(!knowsItself).each([
  ['a function', 'export default defineWorkflow(async (ctx) => ctx.prompt.length);'],
  ['an object', 'export default defineWorkflow({ async run(ctx) { return ctx.prompt.length; } });'],
  ['a class', 'class A { async run() { return 1; } }\nexport default defineWorkflow(A, {});'],
])('a wrong return of %s', async (_, code) => {
  const said = await complaints(code);
  expect(said).toContain("Type 'number' is not assignable to type 'Returned'");
  expect(said).not.toContain('No overload');
});

it('options beside an object are refused when it is defined', () => {
  expect(() => defineWorkflow({ run: async () => {} }, { config: undefined })).toThrow('beside it, options');
});
