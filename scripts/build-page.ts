/**
 * Bundles the page of `trainyard view` into dist/page/: page.js and page.css, which need nothing else. With --if-stale, only if they are
 * missing or older than their sources.
 */
import { globSync, statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const sources = globSync('src/{core,view/page}/**/*.{ts,tsx,css}', { cwd: root }).map(
  (path) => statSync(join(root, path)).mtimeMs,
);
const built = statSync(join(root, 'dist/page/page.js'), { throwIfNoEntry: false })?.mtimeMs ?? 0;
if (process.argv.includes('--if-stale') && built > Math.max(...sources)) process.exit();
const { build } = await import('vite');
await build({
  root,
  configFile: false,
  logLevel: 'warn',
  publicDir: false,
  build: {
    outDir: join(root, 'dist/page'),
    target: 'es2023',
    cssCodeSplit: false,
    modulePreload: false,
    rolldownOptions: {
      input: join(root, 'src/view/page/main.tsx'),
      // A classic script: an exported file holds it inline, and a browser loads no module from file://.
      output: { format: 'iife', entryFileNames: 'page.js', assetFileNames: 'page.css' },
    },
  },
});
