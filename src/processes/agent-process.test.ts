import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { eventually, isRunning, pidsIn } from '../../test/fixtures/grader/processes.ts';
import { limitsMemory } from '../../test/fixtures/system.ts';
import { type AgentProcessOptions, type AgentProcessResult, runAgentProcess } from './agent-process.ts';

const folder = sharedFolder();

const shell = (script: string, options: Partial<AgentProcessOptions> = {}): Promise<AgentProcessResult> =>
  runAgentProcess({ command: 'sh', args: ['-c', script], deadlineMs: 20_000, ...options });
const node = (script: string, options: Partial<AgentProcessOptions> = {}): Promise<AgentProcessResult> =>
  runAgentProcess({ command: process.execPath, args: ['-e', script], deadlineMs: 20_000, ...options });

const setVariables = (variables: Readonly<Record<string, string>>): void => {
  for (const [name, value] of Object.entries(variables)) vi.stubEnv(name, value);
};
afterEach(() => vi.unstubAllEnvs());

/** Writes its own id and those of two grandchildren, one of which ignores SIGTERM. */
const withGrandchildren = (file: string): string =>
  `sleep 1000 & a=$!; sh -c 'trap "" TERM; while :; do sleep 1; done' & printf '[%d,%d,%d]' $$ $a $! > '${file}'`;

describe('a program run as an agent', () => {
  it('gets its arguments, input and environment, and gives its exit code and what it printed', async () => {
    const script = 'read line; echo "$line $NAME $1"; echo oops >&2; exit 3';
    const args = ['-c', script, 'sh', 'two words; $(false)'];
    const result = await shell('', { args, env: { NAME: 'here' }, input: 'hello\n', cwd: folder });
    expect(result).toEqual({ end: { kind: 'exited', code: 3 }, stdout: 'hello here two words; $(false)\n', stderr: 'oops\n' });
  });

  it('sees what programs need and what it was given, and none of the keys of this process', async () => {
    setVariables({ TINKER_API_KEY: 'run-key', MY_SECRET: 'secret' });
    const { stdout } = await node('console.log(JSON.stringify(process.env))', { env: { OPENAI_API_KEY: 'ty-1' } });
    expect(JSON.parse(stdout)).toMatchObject({ PATH: process.env['PATH'], OPENAI_API_KEY: 'ty-1' });
    expect(stdout).not.toMatch(/run-key|secret/);
  });

  it('reports to nobody, and asks nobody for prices, unless it is told to', async () => {
    setVariables({ AGNO_TELEMETRY: 'true' });
    const { stdout } = await node('console.log(JSON.stringify(process.env))');
    expect(JSON.parse(stdout)).toMatchObject({
      ...{ AGNO_TELEMETRY: 'true', CLAUDE_CODE_ATTRIBUTION_HEADER: '0', LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
      ...{ AIDER_ANALYTICS: 'false', CREWAI_DISABLE_TELEMETRY: 'true', HAYSTACK_TELEMETRY_ENABLED: 'false' },
    });
  });

  it('works in folders of its own: it finds neither the project nor what another left, and all it leaves is removed', async () => {
    const script = `pwd; echo "$HOME"; echo "$TMPDIR"; ls -A . "$HOME" "$TMPDIR" | grep -v : | wc -w; echo "[$XDG_CONFIG_HOME]"
      for place in "$HOME" "$TMPDIR" "$TMP" "$TEMP"; do echo left > "$place/left"; done`;
    setVariables({ HOME: folder, TMPDIR: folder, TMP: folder, TEMP: folder, XDG_CONFIG_HOME: folder });
    const seen = [await shell(script), await shell(script)].map(({ stdout }) => stdout.trim().split('\n'));
    expect(seen.map((lines) => lines.slice(3).join().replaceAll(' ', ''))).toEqual(['0,[]', '0,[]']);
    const places = seen.flatMap((lines) => lines.slice(0, 3));
    expect(new Set([...places, process.cwd(), folder]).size).toBe(8);
    expect(places.filter(existsSync)).toEqual([]);
    // Also where it allowed no more changes.
    const { stdout } = await shell('pwd; mkdir -p "$HOME/go/mod"; touch "$HOME/go/mod/x"; chmod -R a-w "$HOME/go"');
    expect(existsSync(join(stdout.trim(), '..'))).toBe(false);
  });

  it('works in the folder it is told, which stays, and has the variables of this process that are named', async () => {
    const cwd = mkdtempSync(join(folder, 'work-'));
    writeFileSync(join(cwd, 'given'), 'here');
    setVariables({ MY_TOOL_KEY: 'tool-key' });
    const inheritEnv = ['MY_TOOL_KEY', 'HOME', 'NOT_SET'];
    const { stdout } = await shell('cat given > kept; echo "$MY_TOOL_KEY $HOME"', { cwd, inheritEnv });
    expect(stdout).toBe(`tool-key ${process.env['HOME']}\n`);
    expect(readFileSync(join(cwd, 'kept'), 'utf8')).toBe('here');
    await expect(shell('exit 0', { inheritEnv: ['TINKER_API_KEY'] })).rejects.toMatchObject({ code: 'USAGE' });
  });

  it('that loops is killed at its deadline with what it spawned', async () => {
    const file = join(folder, 'loop');
    const running = shell(`${withGrandchildren(file)}; while :; do :; done`, { deadlineMs: 1_000 });
    const pids = await pidsIn(file);
    expect(pids.map(isRunning)).toEqual([true, true, true]);
    expect((await running).end).toEqual({ kind: 'deadline', deadlineMs: 1_000 });
    expect(await eventually(() => !pids.some(isRunning))).toBe(true);
  });

  it('that ends well leaves nothing running, and what it left does not hold it up', async () => {
    const file = join(folder, 'left');
    // Nor does input that it does not read.
    const { end } = await shell(`${withGrandchildren(file)}; exit 0`, { input: 'x'.repeat(1_000_000) });
    expect(end).toEqual({ kind: 'exited', code: 0 });
    const pids = await pidsIn(file);
    expect(await eventually(() => !pids.some(isRunning))).toBe(true);
  });

  it.skipIf(!limitsMemory)('that takes too much memory is killed, whichever of its processes takes it', async () => {
    const eater = 'const kept = []; setInterval(() => kept.push(Buffer.alloc(16 << 20, 1)), 20)';
    const { end } = await shell(`"${process.execPath}" -e '${eater}' & wait`, { memoryMb: 200 });
    expect(end).toMatchObject({ kind: 'memory', limitMb: 200 });
    expect(end.kind === 'memory' && end.residentMb).toBeGreaterThan(200);
    expect((await node('setTimeout(() => {}, 700)', { memoryMb: 1_000 })).end).toEqual({ kind: 'exited', code: 0 });
  });

  it.skipIf(limitsMemory)('has no memory limit where processes cannot be listed, which is said once', async () => {
    const said: string[] = [];
    const listen = ({ message }: Error): void => void said.push(message);
    process.on('warning', listen);
    for (let i = 0; i < 2; i++) expect((await shell('sleep 0.2', { memoryMb: 1 })).end).toEqual({ kind: 'exited', code: 0 });
    process.off('warning', listen);
    expect(said).toEqual([expect.stringContaining('memory limits of graders and other programs are not enforced')]);
  });

  it('is killed when its signal aborts, and not started when it has', async () => {
    const file = join(folder, 'abort');
    const given = new AbortController();
    const running = shell(`${withGrandchildren(file)}; wait`, { signal: given.signal });
    const pids = await pidsIn(file);
    given.abort();
    expect((await running).end).toEqual({ kind: 'cancelled' });
    expect(await eventually(() => !pids.some(isRunning))).toBe(true);
    expect((await shell('exit 0', { signal: given.signal })).end).toEqual({ kind: 'cancelled' });
  });

  it('may print without end: the last of it is kept', async () => {
    const { stdout } = await node('for (let i = 0; i < 20000; i++) console.log("line " + i); console.log("last")');
    expect(stdout).toHaveLength(65_536);
    expect(stdout.endsWith('line 19999\nlast\n')).toBe(true);
  });

  it('that is not there, cannot be run, or is killed by someone else says so', async () => {
    const missing = await runAgentProcess({ command: 'no-such-program', deadlineMs: 5_000 });
    expect(missing).toMatchObject({ end: { kind: 'exited' }, stderr: expect.stringContaining('no-such-program') });
    // 126 where a folder of PATH may not be read.
    expect([126, 127]).toContain(missing.end.kind === 'exited' && missing.end.code);
    expect((await shell('kill -9 $$')).end).toEqual({ kind: 'killed', signal: 'SIGKILL' });
    expect((await shell('exit 0', { cwd: join(folder, 'no-such-folder') })).end).toMatchObject({ kind: 'unstartable' });
  });

  it('dies with this process, even if that is killed, and with it what it spawned', async () => {
    const file = join(folder, 'parent');
    const program = fileURLToPath(new URL('../../test/fixtures/processes/agent-parent.ts', import.meta.url));
    const parent = spawn(process.execPath, [program, `${withGrandchildren(file)}; wait`], { stdio: 'ignore' });
    const pids = await pidsIn(file);
    expect(pids.map(isRunning)).toEqual([true, true, true]);
    parent.kill('SIGKILL');
    expect(await eventually(() => !pids.some(isRunning))).toBe(true);
  });
});
