import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, realpath, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { findWalls, mounts, type Prefix, rootReach, type Walls } from './walls.ts';

let folder: string;
let walls: Walls;
beforeAll(async () => {
  folder = await realpath(await mkdtemp(join(tmpdir(), 'walls-')));
  for (const name of ['project', 'run/artifacts', 'run/artifacts-1', 'free'])
    await mkdir(join(folder, name), { recursive: true });
  for (const name of ['project/grader.ts', 'project/tasks.jsonl', 'run/store', 'run/artifacts/others']) {
    await writeFile(join(folder, name), `text of ${name}`);
  }
  walls = {
    hidden: [join(folder, 'run'), join(folder, 'project/tasks.jsonl'), join(folder, 'not there')],
    readOnly: [join(folder, 'project')],
    shown: { folder: join(folder, 'run/artifacts-1'), at: join(folder, 'run/artifacts') },
  };
});
afterAll(() => rm(folder, { recursive: true }));

const found = await findWalls({ hidden: [], readOnly: [] });

/** By which a control group is left, where there are any. */
function groupFiles(): readonly string[] {
  const places = mounts().filter(({ at }) => at.startsWith('/sys/fs/cgroup'));
  return places.map(({ at }) => join(at, 'cgroup.procs')).filter((path) => existsSync(path));
}

/** What a shell prints that runs within, in `cwd`. */
async function within(script: string, cwd = folder): Promise<string> {
  const prefix: Prefix = found.kind === 'walls' ? found.around(walls) : [];
  const [command = '', ...args] = [...prefix, 'sh', '-c', `exec 2>&1; ${script}; true`];
  return (await promisify(execFile)(command, args, { cwd })).stdout.trim();
}

// Elsewhere there are none, and the one who asks is told why.
describe.skipIf(found.kind === 'none')('a process within walls', () => {
  it('cannot see what is hidden, however it is asked for', async () => {
    expect(await within('cat project/tasks.jsonl; ls run; cat run/store')).toMatch(/^artifacts\ncat: run\/store: No such file/);
    expect(await within('ls run/artifacts')).toBe('');
    expect(await within('cat tasks.jsonl', join(folder, 'project'))).toBe('');
  });

  it('can read what is read-only, and not change, replace or add to it, from inside the folder either', async () => {
    expect(await within('cat project/grader.ts')).toBe('text of project/grader.ts');
    for (const [script, cwd] of [
      ['echo no > project/grader.ts', folder],
      ['rm project/grader.ts', folder],
      ['mv project other', folder],
      ['touch project/new', folder],
      ['echo no > grader.ts', join(folder, 'project')],
    ] as const) {
      expect(await within(script, cwd), script).toMatch(/Read-only file system|Device or resource busy/);
    }
    expect(await readFile(join(folder, 'project/grader.ts'), 'utf8')).toBe('text of project/grader.ts');
  });

  it('cannot put another folder in the place of one above them, in which those outside would find its own grader', async () => {
    expect(await within(`mv ${folder} ${folder}-moved`, '/')).toMatch(/Device or resource busy/);
    expect(await readFile(join(folder, 'project/grader.ts'), 'utf8')).toBe('text of project/grader.ts');
  });

  const shared = mounts().find(({ at, isReadOnly }) => at === '/dev/shm' && !isReadOnly);
  it.skipIf(shared === undefined)('cannot change what is mounted within what is read-only (needs a /dev/shm)', async () => {
    const prefix = found.kind === 'walls' ? found.around({ hidden: [], readOnly: ['/dev'] }) : [];
    const [command = '', ...args] = [...prefix, 'sh', '-c', `exec 2>&1; touch /dev/shm/walls-${process.pid}; true`];
    expect((await promisify(execFile)(command, args)).stdout).toMatch(/Read-only file system/);
  });

  it.runIf(process.getuid?.() === 0)('cannot reach the whole machine by being root without rights', async () => {
    // Opened, and nothing written: what is in these files counts for everyone.
    const opened = (path: string, how: string): string => `{ true ${how}${path}; } 2>/dev/null && echo ${path}`;
    const writable = ['/proc/sys/kernel/core_pattern', '/etc/passwd', '/usr/bin/env', ...groupFiles()];
    const disks = rootReach().hidden;
    const attempts = [...writable.map((path) => opened(path, '>>')), ...disks.map((path) => `[ -b ${path} ] && echo ${path}`)];
    expect(await within(attempts.join('; '))).toBe('');
    const { stdout } = await promisify(execFile)('sh', ['-c', `${opened('/etc/passwd', '>>')}; true`]);
    expect(stdout).toBe('/etc/passwd\n');
  });

  it('can write where it is shown a folder, and everywhere else', async () => {
    await within('echo kept > run/artifacts/mine; echo kept > free/file');
    expect(await readFile(join(folder, 'run/artifacts-1/mine'), 'utf8')).toBe('kept\n');
    expect(await readFile(join(folder, 'free/file'), 'utf8')).toBe('kept\n');
  });

  it('cannot take them down, in a namespace of its own either', async () => {
    const tasks = join(folder, 'project/tasks.jsonl');
    const attempts = `umount -l ${tasks}; mount -o remount,bind,rw ${folder}/project; cat ${tasks}; cat ${folder}/run/store; echo no > ${folder}/project/grader.ts`;
    expect(await within(attempts)).not.toContain('text of');
    expect(await within(`unshare --user --map-current-user --keep-caps --mount sh -c '${attempts}'`)).not.toContain('text of');
    expect(await within('grep -h ^Cap /proc/self/status | grep -v 0000000000000000')).toBe('');
    expect(await readFile(join(folder, 'project/grader.ts'), 'utf8')).toBe('text of project/grader.ts');
  });

  it('sees no process but its own, and cannot look into the one that put them up', async () => {
    expect(await within(`ls -d /proc/${process.pid}; kill -0 ${process.pid}`)).toMatch(/No such file.*\n.*No such process/);
    expect(await within('cat /proc/1/environ; ls /proc/1/root/; kill -9 1; sleep 0.1; echo alive')).toMatch(
      /Permission denied\n.*?(Permission denied|cannot access).*\nalive$/s,
    );
  });

  it('would see all of it without them', async () => {
    const bare = await promisify(execFile)('sh', ['-c', `cat project/tasks.jsonl run/store; ls -d /proc/${process.pid}`], {
      cwd: folder,
    });
    expect(bare.stdout).toBe(`text of project/tasks.jsonltext of run/store/proc/${process.pid}\n`);
  });
});

it('walls that cannot be put up are none, and say why', async () => {
  const impossible = { hidden: [], readOnly: [], shown: { folder: '/not there', at: '/nor there' } };
  expect(await findWalls(impossible)).toEqual({ kind: 'none', why: expect.stringMatching(/\w/) });
});
