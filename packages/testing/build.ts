/**
 * Builds dist/ of this package. The sources import Trainyard's public surface by its path in the repository; what is built imports it by name,
 * from the user's own installation, so that there is one `TrainyardError`.
 */
import { execFileSync } from 'node:child_process';
import { cpSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const here = import.meta.dirname;
const root = join(here, '../..');
const built = mkdtempSync(join(tmpdir(), 'trainyard-testing-'));
try {
  execFileSync(join(root, 'node_modules/.bin/tsc'), ['-p', here, '--outDir', built], { stdio: 'inherit' });
  rmSync(join(here, 'dist'), { recursive: true, force: true });
  cpSync(join(built, 'packages/testing/src'), join(here, 'dist'), { recursive: true });
} finally {
  rmSync(built, { recursive: true, force: true });
}
for (const file of globSync('dist/**/*.{js,ts}', { cwd: here })) {
  const path = join(here, file);
  const byName = readFileSync(path, 'utf8').replace(/'(?:\.\.\/)+src\/(\w+)\.[jt]s'/g, (_, door: string) =>
    door === 'index' ? "'trainyard'" : `'trainyard/${door}'`,
  );
  writeFileSync(path, byName);
}
