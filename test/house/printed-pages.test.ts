/** The pages that the code prints are as it prints them now. */
import { expect, it } from 'vitest';
import { PRINTED } from '../../scripts/printed-pages.ts';
import { readText } from './sources.ts';

it.each(Object.entries(PRINTED))('%s is what `npm run build:docs` writes', (page, print) => {
  expect(readText(page)).toBe(print());
});
