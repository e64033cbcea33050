import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { controlGroupPlace, limitMemory, type MemoryLimit } from './memory-limit.ts';

const MB = 2 ** 20;
const canLimit = controlGroupPlace() !== undefined;

interface Ended {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
}

function run({ prefix }: MemoryLimit, program: string): Promise<Ended> {
  const [command = '', ...args] = [...prefix, process.execPath, '-e', program];
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'ignore'] });
  let stdout = '';
  child.stdout.setEncoding('utf8').on('data', (chunk: string) => {
    stdout += chunk;
  });
  return new Promise((resolve) => child.once('close', (code, signal) => resolve({ code, signal, stdout })));
}

const groupsOf = ({ prefix }: MemoryLimit): readonly string[] =>
  prefix.filter((part) => part.endsWith('/cgroup.procs')).map((file) => dirname(file));

describe.runIf(canLimit)('a limit on memory', () => {
  it('ends a program whose buffers go over it, and says so', async () => {
    const limit = limitMemory({ bytes: 128 * MB })!;
    const ended = await run(limit, 'const kept = []; for (;;) kept.push(Buffer.alloc(1e7, 1));');
    expect(ended.signal).toBe('SIGKILL');
    expect(limit.exceeded()).toBe(true);
    await limit.remove();
    expect(groupsOf(limit).filter(existsSync)).toEqual([]);
  });

  it('counts what the program starts', async () => {
    const limit = limitMemory({ bytes: 160 * MB })!;
    const greedy = 'const kept = []; for (;;) kept.push(Buffer.alloc(1e7, 1));';
    const ended = await run(
      limit,
      `console.log(require('child_process').spawnSync(process.execPath, ['-e', ${JSON.stringify(greedy)}]).signal)`,
    );
    expect(ended.stdout === 'SIGKILL\n' || ended.signal === 'SIGKILL').toBe(true);
    expect(limit.exceeded()).toBe(true);
    await limit.remove();
  });

  it('leaves a program alone that stays below it', async () => {
    const limit = limitMemory({ bytes: 256 * MB })!;
    expect(await run(limit, 'console.log(Buffer.alloc(1e7, 1).length)')).toMatchObject({ code: 0, stdout: '10000000\n' });
    expect(limit.exceeded()).toBe(false);
    await limit.remove();
    await limit.remove();
    expect(groupsOf(limit).filter(existsSync)).toEqual([]);
  });

  it.runIf(controlGroupPlace()?.pids !== undefined)('may bound the number of processes too', async () => {
    const limit = limitMemory({ bytes: 512 * MB, processes: 40 })!;
    const bomb =
      "let n = 0; const { spawn } = require('child_process');" +
      "const more = () => { const child = spawn('sleep', ['9']); child.on('error', () => { console.log('refused', n); process.exit(0); });" +
      "child.on('spawn', () => { n += 1; more(); }); }; more();";
    const ended = await run(limit, bomb);
    expect(ended.stdout).toMatch(/^refused [1-3]?\d$/m);
    for (const group of groupsOf(limit)) spawnSync('sh', ['-c', `kill -9 $(cat ${group}/cgroup.procs)`]);
    await limit.remove();
    expect(groupsOf(limit).filter(existsSync)).toEqual([]);
  });

  it('sweeps what a run that was killed left behind', async () => {
    const { memory } = controlGroupPlace()!;
    const dead = spawnSync(process.execPath, ['-e', '']).pid;
    const own = limitMemory({ bytes: 64 * MB })!;
    const left = groupsOf(own)[0]!.replace(`-${process.pid}-`, `-${dead}-`);
    await own.remove();
    // With the group of a sandbox in it, as a grader that was killed with the run leaves it.
    mkdirSync(join(left, 'inner'), { recursive: true });
    const source = new URL('./memory-limit.ts', import.meta.url).href;
    const program = `import(${JSON.stringify(source)}).then((groups) => groups.controlGroupPlace())`;
    spawnSync(process.execPath, ['-e', program]);
    expect(existsSync(left)).toBe(false);
    expect(existsSync(join(memory, 'cgroup.procs'))).toBe(true);
  });
});
