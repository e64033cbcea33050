/**
 * The forms in which agent frameworks accept a model. An integration adds its form to `ModelForms` and registers it on load, so that an
 * authoring style can hand out models in that form without importing the integration; the style's sub-path loads both.
 */
import type { ModelHandle } from './contracts.ts';
import { TrainyardError } from './errors.ts';

// biome-ignore lint/suspicious/noEmptyInterface: integrations declare their forms into it
export interface ModelForms {}

const makers = new Map<string, (handle: ModelHandle) => unknown>();

export function offerModelForm<F extends keyof ModelForms & string>(form: F, make: (handle: ModelHandle) => ModelForms[F]): void {
  makers.set(form, make);
}

/** Throws USAGE if no loaded integration offers this form. */
export function modelInForm<F extends keyof ModelForms & string>(form: F, handle: ModelHandle): ModelForms[F] {
  const make = makers.get(form);
  if (make === undefined) throw new TrainyardError('USAGE', `no integration that is loaded offers models of ${String(form)}`);
  return make(handle) as ModelForms[F];
}
