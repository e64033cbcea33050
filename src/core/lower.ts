/**
 * From what a module exports to the workflow or grader it stands for. Whatever carries core's symbols is one, or can be lowered to one;
 * nothing else is looked at, so that no shape of authoring needs to be known here.
 */
import { type EntryModule, type Grader, graderSymbol, type Lowering, type Workflow, workflowSymbol } from './contracts.ts';
import type { TrainyardError } from './errors.ts';

/** Undefined where it is none, or an abstract base of some. */
export function asWorkflow(value: unknown, module: EntryModule = alone): Workflow | undefined {
  return lowered<Workflow>(value, workflowSymbol, module);
}

export function asGrader(value: unknown, module: EntryModule = alone): Grader | undefined {
  return lowered<Grader>(value, graderSymbol, module);
}

/** All exports; mistakes are thrown as they are found. */
export function moduleOf(exports: object): EntryModule {
  return { exports: Object.entries(exports), problem: alone.problem };
}

const alone: EntryModule = {
  exports: [],
  problem: (mistake: TrainyardError) => {
    throw mistake;
  },
};

function lowered<T>(value: unknown, symbol: symbol, module: EntryModule): T | undefined {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null || !(symbol in value)) return undefined;
  const marked = (value as Record<symbol, true | Lowering<T>>)[symbol];
  return typeof marked === 'function' ? marked.call(value, module) : (value as T);
}
