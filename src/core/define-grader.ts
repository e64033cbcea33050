/**
 * `defineGrader`: how a module says "this is the score". A function, an object with `grade`, or a class; each becomes a `Grader`.
 *
 * `rejected` and `unscorable` are what a grader says instead of a reward: neither is ever a number.
 */
import { isClass, kindOf } from './classes.ts';
import { type Grader, graderSymbol, type Ungraded } from './contracts.ts';
import { TrainyardError } from './errors.ts';
import { defined } from './json.ts';

export type GradeFunction = Grader['grade'];

export interface GraderOptions extends Partial<Omit<Grader, typeof graderSymbol | 'grade'>> {
  grade: GradeFunction;
}

/** Made once in each process, so that what is loaded in its constructor is loaded once. */
export type GraderClass = new () => Pick<GraderOptions, 'grade'> & Partial<GraderOptions>;

const OPTIONS = ['name', 'concurrency', 'deadlineMs', 'retries', 'asksPolicy', 'judges', 'needsEnv', 'grade'] as const;

/** Marks what goes from what the agent did (and the task's answer) to a reward as a grader. Throws GRADER_INVALID for anything else. */
export function defineGrader(given: GradeFunction | GraderOptions | GraderClass): Grader {
  if (typeof given === 'function' && !isClass(given)) {
    return { [graderSymbol]: true, name: given.name || 'grader', grade: given as GradeFunction };
  }
  const name = typeof given === 'function' ? given.name : undefined;
  const options = typeof given === 'function' ? made(given as GraderClass) : given;
  if (typeof options !== 'object' || options === null || typeof options.grade !== 'function') {
    throw new TrainyardError('GRADER_INVALID', `expected a function, or an object or class with grade, found ${kindOf(given)}`, {
      hint: 'write defineGrader(({ task, messages }) => …)',
    });
  }
  if (name === undefined) checkNames(options);
  const { concurrency, deadlineMs, retries, asksPolicy, judges, needsEnv } = options;
  checkNumber('concurrency', concurrency, 1);
  checkNumber('deadlineMs', deadlineMs, 1);
  checkNumber('retries', retries, 0);
  checkVariables(needsEnv);
  return {
    [graderSymbol]: true,
    name: options.name ?? name ?? (options.grade.name || 'grader'),
    ...defined({ concurrency, deadlineMs, retries, asksPolicy, judges, needsEnv }),
    grade: (input, ctx) => options.grade(input, ctx),
  };
}

/** There is nothing here to score, or it should not count: the rollout is kept, and neither trained nor compared with. */
export function rejected(why: string): Ungraded {
  return { kind: 'ungraded', why };
}

/** This cannot be scored, though it should be: counted among the failures of grading, which stop a run when there are too many. */
export function unscorable(why: string): never {
  throw new TrainyardError('GRADER_UNSCORABLE', why);
}

/** The variables that the grader needs and this process does not have. */
export function missingEnv({ needsEnv = [] }: Grader): readonly string[] {
  return needsEnv.filter((name) => (process.env[name]?.trim() ?? '') === '');
}

function made(Class: GraderClass): GraderOptions {
  try {
    return new Class();
  } catch (cause) {
    throw new TrainyardError('GRADER_INIT_FAILED', `new ${Class.name}() threw`, { cause });
  }
}

function checkNames(options: object): void {
  const unknown = Object.keys(options).filter((key) => !(OPTIONS as readonly string[]).includes(key));
  if (unknown.length === 0) return;
  throw new TrainyardError('GRADER_INVALID', `a grader has no ${unknown.join(', ')}; it may have ${OPTIONS.join(', ')}`);
}

function checkVariables(names: unknown): void {
  const isList =
    names === undefined || (Array.isArray(names) && names.every((name) => typeof name === 'string' && /^\w+$/.test(name)));
  // Not repeated: what is no name may be the key itself.
  if (!isList) throw new TrainyardError('GRADER_INVALID', 'needsEnv: expected a list of names of environment variables');
}

function checkNumber(name: string, value: unknown, least: number): void {
  if (value === undefined || (typeof value === 'number' && Number.isSafeInteger(value) && value >= least)) return;
  throw new TrainyardError('GRADER_INVALID', `${name}: expected a whole number from ${least} up, found ${String(value)}`);
}
