/** Whether something is a row in AReaL's format: the right keys, two dimensions, lengths that agree, the same keys as the row before. */
import { describeValue } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';

const REQUIRED = ['input_ids', 'attention_mask'];
const BY_TOKEN = ['input_ids', 'attention_mask', 'loss_mask', 'logprobs', 'versions'];

/**
 * Null is a rejected episode and in order. Gives the row's keys, to be passed on with the next row. Throws USAGE with everything that is
 * wrong with it.
 */
export function checkTrajectoryFormat(row: unknown, expectedKeys?: readonly string[]): readonly string[] | undefined {
  if (row === null) return expectedKeys;
  if (typeof row !== 'object' || Array.isArray(row) || row === undefined) {
    throw bad([`expected an object or null, found ${describeValue(row)}`]);
  }
  const given = row as Readonly<Record<string, unknown>>;
  const keys = Object.keys(given).toSorted();
  if (keys.length === 0) throw bad(['the row is empty']);
  const missing = REQUIRED.filter((key) => !(key in given)).map((key) => `${key} is missing`);
  const drifted =
    expectedKeys === undefined || expectedKeys.join() === keys.join()
      ? []
      : [`the keys are ${keys.join(', ')}, those of the row before were ${expectedKeys.join(', ')}`];
  const mistakes = [...missing, ...drifted, ...shapeMistakes(given)];
  if (mistakes.length > 0) throw bad(mistakes);
  return keys;
}

function shapeMistakes(given: Readonly<Record<string, unknown>>): string[] {
  const ids = given['input_ids'];
  const rows = Array.isArray(ids) ? ids.length : 0;
  const length = Array.isArray(ids) && Array.isArray(ids[0]) ? ids[0].length : 0;
  const twoD = BY_TOKEN.filter((key) => key in given).flatMap((key) => {
    const value = given[key];
    if (!Array.isArray(value) || !value.every((one) => Array.isArray(one) && one.every(Number.isFinite))) {
      return [`${key} is ${describeValue(value)}, expected rows of numbers`];
    }
    const wrong = value.length !== rows || value.some((one: readonly unknown[]) => one.length !== length);
    return wrong ? [`${key} is not ${rows} × ${length} like input_ids`] : [];
  });
  const { rewards } = given;
  const isRewards =
    rewards === undefined || (Array.isArray(rewards) && rewards.length === rows && rewards.every(Number.isFinite));
  return isRewards ? twoD : [...twoD, `rewards is ${describeValue(rewards)}, expected ${rows} numbers`];
}

function bad(mistakes: readonly string[]): TrainyardError {
  return new TrainyardError('USAGE', `not a trajectory: ${mistakes.join('; also: ')}`);
}
