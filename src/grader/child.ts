/** The program of a grading process. Arguments: the URL of the user's module and the name of the exported grader. */

import { asGrader, moduleOf } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import { importedModule, namesOf, serveCalls } from '../processes/serve-calls.ts';
import { announcedBy } from '../processes/user-modules.ts';
import { callGrader, type GraderCall } from './call.ts';

await serveCalls(async (url = '', exportName = '') => {
  const exports = await importedModule(url, 'grader', 'GRADER_FAILED');
  const grader = asGrader(exports[exportName], moduleOf(exports, announcedBy(url)));
  if (grader === undefined) {
    throw new TrainyardError(
      'GRADER_NOT_FOUND',
      `export ${JSON.stringify(exportName)} of ${url} is not a grader; it exports ${namesOf(exports)}`,
    );
  }
  return {
    answer: (call, { signal }) => {
      const { input, model } = call as GraderCall;
      return callGrader(grader, input, { signal, model });
    },
  };
});
