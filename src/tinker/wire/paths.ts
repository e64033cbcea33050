/**
 * Where saved weights lie, as the wire says it: `tinker://<model>/weights/<name>` for a state that training goes on from,
 * `tinker://<model>/sampler_weights/<name>` for weights to sample from.
 *
 * Both parts are plain names. A name has no dot, slash, colon or percent sign in it, so that no path can point outside the
 * folder a server keeps for it, whatever a server makes of the name.
 */
import { shown, WireError } from './wire-error.ts';

export type WeightsKind = 'weights' | 'sampler_weights';

export interface WeightsPath {
  readonly modelId: string;
  readonly kind: WeightsKind;
  readonly name: string;
}

const LONGEST_NAME = 255;
const NAME = /^[A-Za-z0-9_-]+$/;
const SCHEME = 'tinker://';
const EXPECTED = 'tinker://<model>/weights/<name> or tinker://<model>/sampler_weights/<name>';

export function isWeightsName(name: string): boolean {
  return name.length <= LONGEST_NAME && NAME.test(name);
}

export function checkWeightsName(name: string, where: string): void {
  if (!isWeightsName(name)) throw new WireError(where, `a name of 1 to ${LONGEST_NAME} letters, digits, _ and -`, shown(name));
}

export function formatWeightsPath(path: WeightsPath): string {
  checkWeightsName(path.modelId, 'model_id');
  checkWeightsName(path.name, 'path');
  return `${SCHEME}${path.modelId}/${path.kind}/${path.name}`;
}

/** `where`: the field the text came in, for the error. */
export function parseWeightsPath(text: string, where = 'path'): WeightsPath {
  const parts = text.startsWith(SCHEME) ? text.slice(SCHEME.length).split('/') : [];
  const [modelId, kind, name] = parts;
  if (parts.length !== 3 || modelId === undefined || name === undefined || (kind !== 'weights' && kind !== 'sampler_weights')) {
    throw new WireError(where, EXPECTED, shown(text));
  }
  checkWeightsName(modelId, where);
  checkWeightsName(name, where);
  return { modelId, kind, name };
}
