/** Which pages of docs/ the code prints, and by what. */
import { errorsPage } from './error-page.ts';
import { eventsPage, eventsSchema } from './event-pages.ts';
import { settingsPage } from './settings-page.ts';
import { wirePage } from './wire-page.ts';

export const PRINTED: Readonly<Record<string, () => string>> = {
  'docs/reference/errors.md': errorsPage,
  'docs/reference/events.md': eventsPage,
  'docs/reference/events.schema.json': eventsSchema,
  'docs/reference/routes.md': wirePage,
  'docs/reference/settings.md': settingsPage,
};
