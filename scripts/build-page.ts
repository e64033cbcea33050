/** Bundles the page of `trainyard view` into dist/page/: page.js and page.css, which need nothing else. */
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'vite';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
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
