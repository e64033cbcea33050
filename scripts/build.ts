/**
 * Builds dist/: tsc, then what tsc does not copy (the compiled kernels, the scripts that run in Python and what they need), and the page of
 * `trainyard view`.
 */
import { execFileSync } from 'node:child_process';
import { cpSync, globSync, rmSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
rmSync(join(root, 'dist'), { recursive: true, force: true });
execFileSync(join(root, 'node_modules/.bin/tsc'), ['-p', join(root, 'tsconfig.build.json')], { stdio: 'inherit' });
for (const file of globSync('src/**/*.{wasm,py,txt}', { cwd: root }))
  cpSync(join(root, file), join(root, 'dist', relative('src', file)));
await import('./build-page.ts');
