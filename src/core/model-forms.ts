/**
 * Forms in which agent frameworks take a model, by framework. An integration adds its form to `ModelForms` and offers it when it is loaded, so
 * that a shape of authoring can hand out its models in that form without importing the integration; its sub-path loads both.
 */
import type { ModelHandle } from './contracts.ts';
import { TrainyardError } from './errors.ts';

/** By name; empty here. */
// biome-ignore lint/suspicious/noEmptyInterface: integrations declare their forms into it
export interface ModelForms {}

const makers = new Map<string, (handle: ModelHandle) => unknown>();

export function offerModelForm<F extends keyof ModelForms & string>(form: F, make: (handle: ModelHandle) => ModelForms[F]): void {
  makers.set(form, make);
}

/** The model in this form. Throws USAGE where nothing offers it. */
export function modelInForm<F extends keyof ModelForms & string>(form: F, handle: ModelHandle): ModelForms[F] {
  const make = makers.get(form);
  if (make === undefined) throw new TrainyardError('USAGE', `no integration that is loaded offers models of ${String(form)}`);
  return make(handle) as ModelForms[F];
}
