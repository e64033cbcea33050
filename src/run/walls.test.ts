import { mkdirSync, realpathSync, symlinkSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { hasSandbox } from '../../test/fixtures/sandbox.ts';
import { findWalls } from '../isolation/walls.ts';
import { inspectEntry } from '../rollout/discovery.ts';
import { startWorkflow } from '../rollout/runner.ts';
import { wallsOf } from './walls.ts';

const SOURCE = `
import { defineGrader, defineWorkflow } from ${JSON.stringify(new URL('../index.ts', import.meta.url).href)};
export const grader = defineGrader(() => 1);
export default defineWorkflow(async () => '');
`;
let folder: string;
beforeAll(async () => {
  folder = realpathSync(await mkdtemp(join(tmpdir(), 'run-walls-')));
  for (const name of ['app/node_modules/@own', 'lib/scoped', 'lib/plain']) mkdirSync(join(folder, name), { recursive: true });
  writeFileSync(join(folder, 'app/package.json'), '{}');
  writeFileSync(join(folder, 'app/agent.js'), SOURCE);
  symlinkSync('../../../lib/scoped', join(folder, 'app/node_modules/@own/scoped'));
  symlinkSync('../../lib/plain', join(folder, 'app/node_modules/plain'));
  symlinkSync('not there', join(folder, 'app/node_modules/broken'));
  symlinkSync('app', join(folder, 'link'));
});
afterAll(() => rm(folder, { recursive: true }));

describe('what a rollout may not change', () => {
  it('holds packages that are only linked to, as in a workspace, and the Node that graders are started with', () => {
    const module = { url: pathToFileURL(join(folder, 'app/agent.js')).href, exportName: 'default' };
    const { readOnly } = wallsOf({ tasks: [], module });
    expect(readOnly).toEqual(expect.arrayContaining(['app', 'lib/scoped', 'lib/plain'].map((name) => join(folder, name))));
    const node = realpathSync(process.execPath);
    expect(readOnly.some((path) => path === node || node.startsWith(`${path}/`))).toBe(true);
  });

  it('is what graders are loaded from: an entry that was given by a link goes by its own name', async () => {
    const { entry } = await inspectEntry(join(folder, 'link/agent.js'));
    const url = pathToFileURL(join(folder, 'app/agent.js')).href;
    expect(entry).toMatchObject({ workflowModule: { url }, graderModule: { url } });
  });
});

const hasWalls = (await findWalls({ hidden: [], readOnly: [] })).kind === 'walls';
it.runIf(hasWalls && hasSandbox)(
  'a rollout behind walls needs no sandbox for a grader that its entry exports (needs namespaces)',
  async () => {
    const path = join(folder, 'app/coder.js');
    writeFileSync(
      path,
      `import { defineWorkflow } from ${JSON.stringify(new URL('../index.ts', import.meta.url).href)};
import { unitTests } from ${JSON.stringify(new URL('../graders.ts', import.meta.url).href)};
export const grader = unitTests({ language: 'javascript' });
export default defineWorkflow({ isolation: 'process', run: async () => '' });`,
    );
    const { entry, problems } = await inspectEntry(path);
    expect(problems).toEqual([]);
    const module = entry!.workflowModule!;
    const { signal } = new AbortController();
    const started = await startWorkflow(entry!.workflow, { module, workers: 1, signal, walls: wallsOf({ tasks: [], module }) });
    await started[Symbol.asyncDispose]();
  },
);
