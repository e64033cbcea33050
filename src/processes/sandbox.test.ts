/**
 * The sandbox, from inside and from outside: hostile programs of every kind we could think of, and what is left of them. Here hostile code is
 * tested; what uses the sandbox tests only that it does.
 */
import { execFile, spawn } from 'node:child_process';
import { chmodSync, existsSync, readdirSync, readFileSync, realpathSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { sharedFolder } from '../../test/fixtures/folder.ts';
import { eventually } from '../../test/fixtures/grader/processes.ts';
import { hasSandbox, needsSandbox } from '../../test/fixtures/sandbox.ts';
import { openSandbox, type Sandbox, type SandboxResult } from './sandbox.ts';

const SECRET = 'a secret of the machine';
const folder = sharedFolder();
const secretFile = join(folder, 'secret.txt');
let server: Server;
let port = 0;
let sandbox: Sandbox;

beforeAll(async () => {
  if (!hasSandbox) return;
  sandbox = openSandbox();
  writeFileSync(secretFile, SECRET);
  // Where the tests are root's, the program is another user, and reads what everyone may read.
  chmodSync(folder, 0o755);
  process.env['SANDBOX_TEST_SECRET'] = SECRET;
  server = createServer((socket) => socket.end(SECRET));
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  port = (server.address() as { port: number }).port;
});
afterAll(() => void server?.close());

const sh = (script: string, limits = {}): Promise<SandboxResult> =>
  sandbox.run({ program: 'sh', args: ['-c', script], limits: { wallMs: 20_000, ...limits } });

/** Numbers of all processes whose command line holds the mark. */
function processesWith(mark: string): readonly string[] {
  return readdirSync('/proc').filter((pid) => {
    try {
      return /^\d+$/.test(pid) && readFileSync(`/proc/${pid}/cmdline`, 'latin1').includes(mark);
    } catch {
      return false;
    }
  });
}

/** What a Node process of its own prints. */
async function printedBy(code: string, { env = process.env, before = [] as readonly string[] } = {}): Promise<string> {
  const source = JSON.stringify(new URL('./sandbox.ts', import.meta.url).href);
  const script = `import { openSandbox } from ${source};\n${code}`;
  const [command = '', ...args] = [...before, process.execPath, '--input-type=module', '-e', script];
  return (await promisify(execFile)(command, args, { env })).stdout;
}
const python = (script: string, limits = {}): Promise<SandboxResult> =>
  sandbox.run({ program: '/usr/bin/python3', args: ['-c', script], limits });

describe('a program that is asked for', needsSandbox, () => {
  it('refuses limits and file names that are none, all at once', () => {
    expect(() => sandbox.start({ program: 'true', limits: { wallMs: 0, memoryMb: Number.NaN } })).toThrow(
      /wallMs 0, memoryMb NaN/,
    );
    expect(() => sandbox.start({ program: 'true', files: { '../a': '', '/b': '', ok: '' } })).toThrow(/\.\.\/a, \/b$/);
  });

  it('gets its arguments, its files and its input, and its output and exit code come back', async () => {
    const script = 'cat; cat sub/dir/a.txt; printf "%s|" "$@"; echo no >&2; exit 3';
    const files = { 'sub/dir/a.txt': 'grüß\n', 'b.bin': '\u0000x' };
    const result = await sandbox.run({ program: 'sh', args: ['-c', script, 'sh', 'a b', '', '$(id)'], files, stdin: 'in\n' });
    expect(result).toEqual({
      kind: 'exited',
      code: 3,
      stdout: 'in\ngrüß\na b||$(id)|',
      stderr: 'no\n',
      ranMs: expect.any(Number),
    });
    expect(result.ranMs).toBeGreaterThan(0);
  });

  it('that does not exist ends as 127', async () => {
    expect(await sandbox.run({ program: 'no-such-program' })).toMatchObject({ kind: 'exited', code: 127 });
  });

  it('that is cancelled ends at once', async () => {
    const controller = new AbortController();
    const running = sandbox.run({ program: 'sleep', args: ['1000.125'], signal: controller.signal });
    expect(await eventually(() => processesWith('1000.125').length > 0)).toBe(true);
    controller.abort();
    expect(await running).toMatchObject({ kind: 'cancelled' });
    expect(await eventually(() => processesWith('1000.125').length === 0)).toBe(true);
    expect(await sandbox.run({ program: 'true', signal: AbortSignal.abort() })).toMatchObject({ kind: 'cancelled' });
  });

  it('that killed itself is told from one that exited', async () => {
    expect(await sh('kill -SEGV $$')).toMatchObject({ kind: 'signalled', signal: 11 });
  });
});

describe('inside', needsSandbox, () => {
  it('there is nothing of the machine to read', async () => {
    const named = ['/root', '/home', '/var', '/srv', '/mnt', '/run', '/sys', '/work', '/usr/src', '/etc/shadow'];
    const places = [...named, folder, process.cwd()];
    const { stdout } = await sh(`ls -d ${places.join(' ')}; cat /etc/passwd ${secretFile}; true`);
    expect(stdout).toBe('');
  });

  it('the environment is empty but for what programs need', async () => {
    const { stdout } = await sh('env; cat /proc/*/environ');
    expect(stdout).not.toContain(SECRET);
    const names = stdout.split(/[\n\0]/).map((line) => line.split('=')[0]);
    expect(new Set(names.filter((name) => !['', 'PATH', 'LANG', 'PWD', 'OLDPWD', 'SHLVL', '_'].includes(name!)))).toEqual(
      new Set(),
    );
  });

  it('only its own processes are there, and the first cannot be stopped or killed', async () => {
    const { stdout } = await sh('kill -9 1; kill -STOP 1; ls -d /proc/[0-9]* | wc -l; echo on');
    const [count, on] = stdout.trim().split('\n');
    expect(Number(count)).toBeLessThan(8);
    expect(on).toBe('on');
  });

  it('no socket of this machine or elsewhere is reached: streams, datagrams, and sockets that have a name and no file', async () => {
    const name = `sandbox-test-${process.pid}`;
    const listener = createServer((socket) => socket.end(SECRET));
    await new Promise<void>((resolve) => void listener.listen(`\0${name}`, resolve));
    const script = `import socket
def tried(family, kind, where):
    try:
        s = socket.socket(family, kind)
        s.settimeout(2)
        s.connect(where)
        s.send(b"x")
        return "reached" if kind == socket.SOCK_DGRAM else str(s.recv(100))
    except OSError:
        return "refused"
stream = socket.SOCK_STREAM
print(tried(socket.AF_UNIX, stream, "\\0${name}"), tried(socket.AF_INET, socket.SOCK_DGRAM, ("10.0.0.1", 53)),
  tried(socket.AF_INET6, stream, ("::1", ${port})), tried(socket.AF_INET, stream, ("127.0.0.1", ${port})))`;
    const { stdout } = await python(script);
    const outside = (await promisify(execFile)('/usr/bin/python3', ['-c', script])).stdout;
    listener.close();
    expect(stdout).toBe('refused refused refused refused\n');
    expect(outside.split(SECRET)).toHaveLength(3);
    expect((await sh('cat /proc/net/dev')).stdout).not.toMatch(/eth|ens|wlan/);
  });

  it('no descriptor of this machine is handed in, also none that this process was started with; there is no shared memory', async () => {
    const look = 'for fd in /proc/self/fd/*; do readlink $fd; done; ls -d /dev/shm';
    const command = 'exec "$@" 9<"$0" 7</etc/hostname';
    const started = `import os, sys; os.dup2(os.open(sys.argv[1], os.O_RDONLY), 77); os.set_inheritable(77, True); os.execvp("sh", ["sh", "-c", sys.argv[2], sys.argv[1], *sys.argv[3:]])`;
    const stdout = await printedBy(
      `console.log((await openSandbox().run({ program: 'sh', args: ['-c', ${JSON.stringify(look)}] })).stdout);`,
      { before: ['/usr/bin/python3', '-c', started, secretFile, command] },
    );
    const found = stdout
      .trim()
      .split('\n')
      .filter((path) => path !== '' && !/^(socket:|pipe:|\/dev\/null$|\/proc\/)/.test(path));
    expect(stdout).toContain(':');
    expect(found).toEqual([]);
  });

  it('nothing can be written but the scratch directory and /tmp, and nothing of that is left', async () => {
    const script =
      'for f in /x /usr/bin/x /usr/x /etc/x /dev/x /lib/x /opt/x /proc/x /old/x; do true >$f && echo wrote $f; done; true >./mine && true >/tmp/mine && echo ok';
    expect((await sh(`{ ${script}; } 2>/dev/null`)).stdout).toBe('ok\n');
    expect(['/tmp/mine', '/tmp/work/mine', '/x', '/mnt/tmp/mine'].filter((path) => existsSync(path))).toEqual([]);
    expect((await sh('ls -A . /tmp')).stdout).toBe('.:\n\n/tmp:\nwork\n');
  });

  it('what is shown to it can be read and not changed, by no trick with links', async () => {
    const script = `cat /data/secret.txt; { echo x >/data/secret.txt; echo x >/data/new; rm /data/secret.txt; ln -s /data/secret.txt l; echo x >l; ln /data/secret.txt h; echo x >h; chmod 777 /data; mount -o remount,rw /data; } 2>/dev/null; ln -s / up; ls up/root up/../../home 2>/dev/null; true`;
    const result = await sandbox.run({ program: 'sh', args: ['-c', script], readable: [{ source: folder, target: '/data' }] });
    expect(result.stdout).toBe(SECRET);
    expect(readFileSync(secretFile, 'utf8')).toBe(SECRET);
    expect(readdirSync(folder)).toEqual(['secret.txt']);
  });

  it('there are no rights to be had: no mounts, no namespaces, no tracing, no devices, no other user', async () => {
    const tries = [
      ...['mount -t tmpfs t /tmp', 'mount --bind /tmp /usr', 'umount /proc', 'chroot / true', 'nsenter -t 1 -m true'],
      ...['unshare -U true', 'unshare -m true', 'unshare -n true', 'setpriv --reuid 1 true', 'chown 1 .'],
      ...['mknod n b 254 0', 'cat /dev/mem', 'cat /dev/vda', 'dmesg', 'hostname other', 'date -s 2001-01-01'],
    ];
    const script = tries.map((one) => `${one} >/dev/null 2>&1 && echo "${one}"`).join('; ');
    expect((await sh(`${script}; grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status`)).stdout).toBe(
      'CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n',
    );
  });
});

describe('a hostile program', needsSandbox, () => {
  it('that never ends is killed at its limit, whatever it ignores', async () => {
    const ignores = "trap '' TERM INT HUP QUIT; while :; do :; done";
    expect(await sh(ignores, { wallMs: 500 })).toMatchObject({ kind: 'timeout', wallMs: 500 });
    expect(await sh('kill -STOP $$; sleep 100', { wallMs: 500 })).toMatchObject({ kind: 'timeout' });
  });

  it('that computes too long is ended by its own limit', async () => {
    expect(await sh('while :; do :; done', { cpuSeconds: 1 })).toMatchObject({ kind: 'signalled' });
  });

  it('that leaves daemons behind leaves nothing behind', async () => {
    const daemons =
      "for i in 1 2 3; do setsid sh -c 'setsid sleep 1000.25 & sleep 1000.25' >/dev/null 2>&1 </dev/null & done; sleep 0.2; echo left";
    expect(await sh(daemons)).toMatchObject({ kind: 'exited', code: 0, stdout: 'left\n' });
    expect(await eventually(() => processesWith('1000.25').length === 0)).toBe(true);
  });

  it('that multiplies stays within its number, and its neighbours run on', async () => {
    const bomb = sh('bomb() { bomb | bomb & }; bomb; sleep 30', { wallMs: 2_000, processes: 20 });
    const threads = `import threading, time\nn = 0\ntry:\n    while n < 500:\n        threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\nexcept RuntimeError:\n    pass\nprint(n < 100, flush=True)\nimport os; os._exit(0)`;
    const neighbours = await Promise.all([sh('echo fine'), python(threads)]);
    expect(neighbours.map(({ stdout }) => stdout)).toEqual(['fine\n', 'True\n']);
    expect(await bomb).toMatchObject({ kind: expect.stringMatching(/timeout|exited|signalled/) });
    expect(await eventually(() => processesWith('bomb() {').length === 0)).toBe(true);
  });

  it('that signals everyone reaches nobody', async () => {
    const neighbour = sh('sleep 1; echo fine');
    expect(await sh('kill -9 -1; kill -9 -$$; echo never')).toMatchObject({ kind: expect.stringMatching(/signalled|exited/) });
    expect(await neighbour).toMatchObject({ stdout: 'fine\n' });
  });

  it('that takes memory is stopped: heap, mappings and children', async () => {
    const limits = { memoryMb: 100, fileMb: 500, wallMs: 20_000 };
    const forks =
      'import os, time\nfor _ in range(4): os.fork()\nkept = bytearray(3 * 10**7)\nkept[::4096] = b"x" * len(kept[::4096])\ntime.sleep(1)';
    const results = [
      await python('kept = []\nwhile True: kept.append(bytearray(10**6))', limits),
      await python('import mmap\nm = mmap.mmap(-1, 10**9)\nfor i in range(0, 10**9, 4096): m[i] = 1', limits),
      await python(forks, limits),
    ];
    expect(results.map(({ kind }) => kind)).toEqual(['memory', 'memory', 'memory']);
  });

  it('that fills the disk fills its own small one', async () => {
    const { stdout } = await sh(
      'head -c 100000000 /dev/zero >a 2>/dev/null; head -c 100000000 /dev/zero >/tmp/b 2>/dev/null; du -sm /tmp | cut -f1',
      { fileMb: 8 },
    );
    expect(Number(stdout)).toBeLessThanOrEqual(9);
  });

  it('that prints without an end is stopped, on either stream', async () => {
    for (const script of ['cat /dev/zero', 'cat /dev/zero >&2']) {
      const result = await sh(script, { outputBytes: 100_000 });
      expect(result).toMatchObject({ kind: 'output', outputBytes: 100_000 });
      expect(result.stdout.length + result.stderr.length).toBeLessThan(1_000_000);
    }
  });

  it('that deletes all it can, itself included, ends as it ends', async () => {
    expect(await sh('rm -rf /tmp/* / --no-preserve-root 2>/dev/null; echo done')).toMatchObject({ stdout: 'done\n' });
    expect(existsSync('/usr/bin/env')).toBe(true);
    expect(await sh('echo next')).toMatchObject({ stdout: 'next\n' });
  });

  it('that writes where the set-up speaks says nothing', async () => {
    const script = 'for fd in 3 4 5 6 7 8 9; do eval "echo ended 0 >&$fd"; done 2>/dev/null; exit 7';
    expect(await sh(script)).toMatchObject({ kind: 'exited', code: 7 });
  });

  it('a program dies with the process that started it, however that ends', async () => {
    const script = `import { openSandbox } from ${JSON.stringify(new URL('./sandbox.ts', import.meta.url).href)};
      openSandbox().start({ program: 'sleep', args: ['1000.5'], limits: { wallMs: 100000 } });`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'ignore' });
    const isSleeping = (): boolean =>
      processesWith('1000.5').some((pid) => readFileSync(`/proc/${pid}/comm`, 'utf8') === 'sleep\n');
    expect(await eventually(isSleeping)).toBe(true);
    child.kill('SIGKILL');
    expect(await eventually(() => processesWith('1000.5').length === 0)).toBe(true);
  });
});

/** Inside of a sandbox no other can be made: there this system is one that offers none. */
it('where there is no sandbox, one is refused: why, and what to install or allow', needsSandbox, async () => {
  const source = fileURLToPath(new URL('..', import.meta.url));
  const script =
    'try { openSandbox(); console.log("open"); } catch ({ code, message, hint }) { console.log(code, message, hint); }';
  const { stdout } = await sandbox.run({
    program: '/opt/node',
    args: ['--input-type=module', '-e', `import { openSandbox } from '/opt/src/processes/sandbox.ts';\n${script}`],
    readable: [
      { source: realpathSync(process.execPath), target: '/opt/node' },
      { source, target: '/opt/src' },
    ],
    limits: { memoryMb: 1_024, processes: 128, wallMs: 60_000, cpuSeconds: 60 },
  });
  expect(stdout).toMatch(/^SANDBOX_MISSING this system offers no sandbox: .+(allow user namespaces|install bubblewrap)/);
});

it('a program in a folder of PATH that is called bwrap is not taken for it', needsSandbox, async () => {
  writeFileSync(join(folder, 'bwrap'), '#!/bin/sh\necho planted\n', { mode: 0o755 });
  const env = { ...process.env, PATH: `${folder}:${process.env['PATH']}` };
  const code = `console.log((await openSandbox().run({ program: 'echo', args: ['own'] })).stdout);`;
  expect(await printedBy(code, { env })).toBe('own\n\n');
  expect((await promisify(execFile)('bwrap', [], { env })).stdout).toBe('planted\n');
});
