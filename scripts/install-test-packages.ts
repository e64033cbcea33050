/**
 * Installs what tests need beyond the project's own packages: one folder per set under test/packages, each with its own lock, because
 * agent frameworks ask for different majors of the same client. A folder whose installed tree is as new as its lock is left alone.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';

const root = join(import.meta.dirname, '../test/packages');
for (const name of existsSync(root) ? readdirSync(root).toSorted() : []) {
  const folder = join(root, name);
  const lock = join(folder, 'package-lock.json');
  if (!existsSync(lock) || isCurrent(lock, join(folder, 'node_modules/.package-lock.json'))) continue;
  console.log(`installing test/packages/${name}`);
  execFileSync('npm', ['ci', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error'], {
    cwd: folder,
    stdio: 'inherit',
  });
}

function isCurrent(lock: string, installed: string): boolean {
  return existsSync(installed) && statSync(installed).mtimeMs >= statSync(lock).mtimeMs;
}
