/** The one check of what graders are made with that all of them need: a misspelt option would otherwise silently change what is right. */
import { TrainyardError } from '../core/errors.ts';
import { nearName } from '../core/near-name.ts';

/**
 * Throws GRADER_INVALID where `given` is no object of options, or has others than `names`. `faults`: what else is wrong with them, to be told
 * at once; asked only where they are an object.
 */
export function checkOptionNames(
  whose: string,
  given: unknown,
  names: readonly string[],
  { faults, hint }: { readonly faults?: () => Iterable<string>; readonly hint?: string } = {},
): void {
  if (typeof given !== 'object' || given === null || Array.isArray(given)) {
    const found = Array.isArray(given) ? 'a list' : given === null ? 'null' : given === undefined ? 'none' : `a ${typeof given}`;
    throw new TrainyardError('GRADER_INVALID', `${whose}: expected an object of options, found ${found}`, {
      hint: hint ?? `write ${whose}({ … }) with some of ${names.join(', ')}`,
    });
  }
  const all = [...unknownOptions(given, names), ...(faults?.() ?? [])];
  if (all.length === 0) return;
  throw new TrainyardError('GRADER_INVALID', `${whose}: ${all.join('; ')}`, hint === undefined ? {} : { hint });
}

/** One fault for each option that there is not. Values are not repeated: they may be secrets. `whose` begins each. */
export function unknownOptions(given: object, names: readonly string[], whose = 'it'): readonly string[] {
  return Object.keys(given)
    .filter((name) => !names.includes(name))
    .map((name) => {
      const meant = nearName(name, names);
      return `${whose} has no option ${name}, ${meant === undefined ? `expected ${names.join(', ')}` : `did you mean ${meant}?`}`;
    });
}
