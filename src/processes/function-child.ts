/**
 * The program of a process that calls one function of the user's.
 *
 * Arguments: the module's URL and the name of the exported function.
 */
import { TrainyardError } from '../core/errors.ts';
import { importedModule, namesOf } from './imported-module.ts';
import { serveCalls } from './serve-calls.ts';

await serveCalls(async (url = '', exportName = '') => {
  const exports = await importedModule(url, 'function', 'USAGE');
  const called = exports[exportName];
  if (typeof called !== 'function') {
    throw new TrainyardError(
      'USAGE',
      `export ${JSON.stringify(exportName)} of ${url} is not a function; it exports ${namesOf(exports)}`,
    );
  }
  return { answer: (args) => (called as (...given: readonly unknown[]) => unknown)(...(args as readonly unknown[])) };
});
