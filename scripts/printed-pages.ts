/** Which pages of docs/ the code prints, and by what. */
import { settingsPage } from './settings-page.ts';

export const PRINTED: Readonly<Record<string, () => string>> = {
  'docs/reference/settings.md': settingsPage,
};
