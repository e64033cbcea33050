/** The entry of a command that may be given a list of flows instead: the list is an entry, too. */
import { TrainyardError } from '../core/errors.ts';

export function entryGiven(entry: string | undefined, flows: string | undefined, verb: string): string {
  const given = entry ?? flows;
  if (given !== undefined) return given;
  throw new TrainyardError('USAGE', 'missing required argument: entry', { hint: `trainyard ${verb} <entry>` });
}
