/** Where the system gives no more descriptors: what cannot be started is said so, and nothing else breaks. */
import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { temporaryFolder } from '../../test/fixtures/folder.ts';
import { needsSandbox } from '../../test/fixtures/sandbox.ts';

const source = (path: string): string => JSON.stringify(new URL(path, import.meta.url).href);

/** Opens files until there is no more room for a process, does `work`, gives the files back, and does it again; prints what came of both. */
async function withoutRoom(imports: string, work: string): Promise<readonly unknown[]> {
  const script = join(temporaryFolder(), 'script.ts');
  writeFileSync(
    script,
    `import { closeSync, openSync } from 'node:fs';
${imports}
const open = [];
const work = async () => { ${work} };
await work();
try { for (;;) open.push(openSync('/dev/null')); } catch {}
for (const descriptor of open.splice(0, 4)) closeSync(descriptor);
const without = await work();
await new Promise(setImmediate);
for (const descriptor of open.splice(0)) closeSync(descriptor);
console.log(JSON.stringify([without, await work()]));
process.exit();`,
  );
  const { stdout } = await promisify(execFile)('sh', ['-c', `ulimit -n 512; exec "$0" "$1"`, process.execPath, script]);
  return JSON.parse(stdout) as unknown[];
}

describe.runIf(process.platform === 'linux')('without room for the pipes of a process', () => {
  it('a program is not started, and the run goes on', async () => {
    const [without, then] = await withoutRoom(
      `import { runAgentProcess } from ${source('./agent-process.ts')};`,
      `return (await runAgentProcess({ command: 'true', deadlineMs: 5000 })).end;`,
    );
    expect(without).toEqual({ kind: 'unstartable', message: expect.stringContaining('too many files are open') });
    expect(then).toEqual({ kind: 'exited', code: 0 });
  });

  it('a sandbox is not set up, and says so', needsSandbox, async () => {
    const [without, then] = await withoutRoom(
      `import { openSandbox } from ${source('./sandbox.ts')};
const sandbox = openSandbox();`,
      `return sandbox.run({ program: 'true' }).then(({ kind }) => kind, ({ code, message }) => code + message);`,
    );
    expect(without).toMatch(/^SANDBOX_FAILED.*too many files are open/);
    expect(then).toBe('exited');
  });

  it('a pool says why it has no process, and has one when there is room again', async () => {
    const [without, then] = await withoutRoom(
      `import { openProcessPool } from ${source('./process-pool.ts')};
const script = new URL(${source('../../test/fixtures/processes/served.ts')});
const program = { kind: 'test', script, args: ['/dev/null'], words: { code: 'USAGE' } };
const pool = await openProcessPool({ program, workers: 1 });`,
      `await pool.call('exit');
for (;;) {
  const answer = await pool.call('hello');
  if (answer.kind === 'answered') return answer.value;
  if (answer.kind === 'unusable' && open.length > 0) return answer.error.message;
  await new Promise(setImmediate);
}`,
    );
    expect(without).toMatch(/too many files are open/);
    expect(then).toBe('hello');
  });
});
