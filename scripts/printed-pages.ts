/** Which pages of docs/ the code prints, and by what. */
import { wirePage } from './wire-page.ts';

export const PRINTED: Readonly<Record<string, () => string>> = {
  'docs/reference/routes.md': wirePage,
};
