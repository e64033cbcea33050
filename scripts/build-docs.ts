/** Writes the pages of docs/ that the code prints: `npm run build:docs`. test/house/printed-pages.test.ts compares them. */
import { writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { PRINTED } from './printed-pages.ts';

for (const [page, print] of Object.entries(PRINTED))
  writeFileSync(fileURLToPath(new URL(`../${page}`, import.meta.url)), print());
