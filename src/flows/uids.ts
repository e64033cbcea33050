/** Names of trajectories, prompts and channels, as they come from outside: checked before they name anything here. */
import { z } from 'zod';
import type { Purpose } from '../core/types.ts';
import { invalid } from '../gateway/dialects/parameters.ts';
import type { Grant } from '../gateway/keys.ts';
import type { HttpRequest } from '../http/message.ts';

const UID = /^(?!\.{1,2}$)[\w.:~-]{1,128}$/;
/** They would be a file, a prototype or another route somewhere. */
const TAKEN = /^(?:con|prn|aux|nul|com\d|lpt\d|__proto__|constructor|prototype|r)(?:\..*)?$/i;

export const isUid = (text: string): boolean => UID.test(text) && !TAKEN.test(text);

const EXPECTED = 'expected 1 to 128 letters, digits and . : ~ - _ that are no reserved name';

export const uid = z.string().refine(isUid, { error: EXPECTED });

/** Throws where it is none; `param`: where it stood. */
export function checkedUid(name: string, param: string): string {
  if (isUid(name)) return name;
  throw invalid(param, EXPECTED);
}

/** Whose trajectory a call is about: the one its body or header names, else the one of its key. */
export function trajectoryNamed(
  given: string | null | undefined,
  { header }: Pick<HttpRequest, 'header'>,
  { rollout }: Grant,
): string {
  const name = given ?? header('x-rollout-id') ?? rollout;
  if (name === undefined) throw invalid('trajectory_uid', 'missing', 'say which trajectory it is, or use the key of a rollout');
  return checkedUid(name, 'trajectory_uid');
}

/** Training data and validation data; by our word for it, its purpose. */
export const CHANNELS: Readonly<Record<string, Purpose>> = { train: 'train', val: 'eval' };

export const channel = z.enum(['train', 'val'], { error: 'expected train or val' }).nullish();

export function purposeOf(name: string | null | undefined): Purpose | undefined {
  return name == null ? undefined : CHANNELS[name];
}

export const channelOf = (purpose: Purpose): string => (purpose === 'eval' ? 'val' : 'train');

/** Of a query such as `?channel=val`; absent: undefined. Throws for whatever else is in it. */
export function channelIn(query: string | undefined): Purpose | undefined {
  const parameters = new URLSearchParams(query ?? '');
  for (const name of parameters.keys()) if (name !== 'channel') throw invalid(name.slice(0, 80), 'not a parameter of this route');
  const given = parameters.getAll('channel');
  if (given.length === 0) return undefined;
  const [name] = given;
  if (given.length === 1 && name !== undefined && Object.hasOwn(CHANNELS, name)) return CHANNELS[name];
  throw invalid('channel', `expected train or val, found ${JSON.stringify(given.join(', ').slice(0, 80))}`);
}
