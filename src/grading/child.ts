/** The program of a grading process. Arguments: the URL of the user's module and the name of the exported grader. */
import { asGrader, moduleOf } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import { importedModule, namesOf, serveCalls } from '../processes/serve-calls.ts';
import { announcedBy } from '../processes/user-modules.ts';
import { callGrader, type GraderCall } from './call.ts';

/** Characters per grading that are told. */
const MOST_PRINTED = 8_000;

let told: ((text: string) => void) | undefined;
for (const stream of [process.stdout, process.stderr]) {
  const write = stream.write.bind(stream) as (...given: readonly unknown[]) => boolean;
  stream.write = (chunk: string | Uint8Array, ...rest: readonly unknown[]) => {
    told?.(typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString());
    return write(chunk, ...rest);
  };
}

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
    answer: (call, { signal, note }) => {
      const { input, model } = call as GraderCall;
      let room = MOST_PRINTED;
      told = (text) => {
        if (room > 0) note(text.slice(0, room));
        room -= text.length;
      };
      return callGrader(grader, input, { signal, model });
    },
  };
});
