/**
 * A body that is not what it should be: the one error of the codecs in this folder.
 *
 * It says where in the body, what was expected there and what was found. It knows nothing of HTTP or of a run: whoever receives it
 * says it in its own terms (a client: the server garbled its answer; a server: the request is refused).
 */
export class WireError extends Error {
  override readonly name = 'WireError';
  /** Such as `data[3].loss_fn_inputs.advantages`; empty for the whole body. */
  readonly where: string;

  constructor(where: string, expected: string, found: string) {
    super(`${where === '' ? 'the body' : where}: expected ${expected}, found ${found}`);
    this.where = where;
  }
}

const LONGEST_SHOWN = 60;

/** A value as an error shows it: short, whatever was sent. */
export function shown(value: unknown): string {
  if (value === undefined) return 'nothing';
  if (value === null) return 'null';
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === 'object') return 'an object';
  if (typeof value !== 'string') return String(value);
  return JSON.stringify(value.length > LONGEST_SHOWN ? `${value.slice(0, LONGEST_SHOWN)}…` : value);
}
