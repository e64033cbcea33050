/** A file system of its own that can be filled up: a tmpfs, which only root can mount. Elsewhere `smallDisk` says why there is none. */
import { spawnSync } from 'node:child_process';
import { closeSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface SmallDisk extends Disposable {
  readonly dir: string;
  fill(): void;
  free(): void;
}

const MEGABYTES = 64;

export function smallDisk(): SmallDisk | string {
  if (process.getuid?.() !== 0) return 'only root can mount a tmpfs';
  const dir = mkdtempSync(join(tmpdir(), 'trainyard-disk-'));
  const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${MEGABYTES}m`, 'tmpfs', dir], { encoding: 'utf8' });
  if (status !== 0) {
    rmSync(dir, { recursive: true });
    return `no tmpfs could be mounted: ${stderr?.trim() || 'there is no mount command'}`;
  }
  const ballast = join(dir, 'ballast');
  return {
    dir,
    fill() {
      const file = openSync(ballast, 'w');
      try {
        for (let size = 1 << 20; size >= 1; size >>= 4) fillWith(file, Buffer.alloc(size));
      } finally {
        closeSync(file);
      }
    },
    free: () => rmSync(ballast, { force: true }),
    [Symbol.dispose]() {
      spawnSync('umount', ['-l', dir]);
      rmSync(dir, { recursive: true, force: true });
    },
  };
}

function fillWith(file: number, piece: Buffer): void {
  try {
    for (;;) if (writeSync(file, piece) < piece.length) return;
  } catch (thrown) {
    if ((thrown as NodeJS.ErrnoException).code !== 'ENOSPC') throw thrown;
  }
}
