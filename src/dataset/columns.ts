/** The columns that a source of tasks may have: known names only, so that a misspelt `answer` never silently becomes "no answer". */
import { nearName } from '../core/near-name.ts';

const COLUMNS = ['id', 'prompt', 'system_prompt', 'user_prompt', 'answer', 'ground_truth', 'label', 'metadata'] as const;
const KNOWN: ReadonlySet<string> = new Set(COLUMNS);
/** Null in a row is as if it had none; without a prompt or metadata it would be no task. */
const NULLABLE = ['id', 'system_prompt', 'answer', 'ground_truth', 'label'];
/** What others call a column: meant where the row has none of ours for it. */
const ELSEWHERE = [
  { ours: ['prompt', 'user_prompt'], theirs: ['question', 'query', 'input', 'instruction', 'problem', 'messages', 'text'] },
  {
    ours: ['answer', 'ground_truth', 'label'],
    theirs: ['target', 'gold', 'solution', 'output', 'response', 'completion', 'expected', 'reference'],
  },
];

/** Everything wrong with the names in the first row. */
export function columnProblems(names: readonly string[]): readonly string[] {
  const unknown = names.filter((name) => !KNOWN.has(name)).map((name) => unknownColumn(name, names));
  const has = (name: string): boolean => names.includes(name);
  if (has('prompt') && has('user_prompt')) return [...unknown, 'expected either prompt or user_prompt, found both'];
  if (has('prompt') || has('user_prompt') || has('metadata')) return unknown;
  return [...unknown, 'missing required columns: expected either prompt or user_prompt, or metadata, found neither'];
}

/** How a row's names differ from those of the first row. */
export function difference(names: readonly string[], first: ReadonlySet<string>): string | undefined {
  const extra = names.filter((name) => !first.has(name));
  if (extra.length === 0 && names.length === first.size) return undefined;
  const missing = [...first].filter((name) => !names.includes(name));
  const parts = [listed('missing', missing), listed('extra', extra)].filter((part) => part !== '');
  const absent = NULLABLE.filter((name) => missing.includes(name) || extra.includes(name));
  const hint = absent.length === 0 ? '' : `; write null where a row has no ${absent.join(' or ')}`;
  return `top-level fields differ from the first row (${parts.join('; ')})${hint}`;
}

function listed(what: string, names: readonly string[]): string {
  if (names.length === 0) return '';
  return `${what}: ${names.slice(0, 8).map(shown).join(', ')}${names.length > 8 ? ', …' : ''}`;
}

function shown(name: string): string {
  return /^[\w.-]{1,60}$/.test(name) ? name : JSON.stringify(name.slice(0, 60));
}

function unknownColumn(name: string, names: readonly string[]): string {
  const word = name.toLowerCase();
  const called = ELSEWHERE.find(({ ours, theirs }) => theirs.includes(word) && !ours.some((own) => names.includes(own)));
  const meant = nearName(word, COLUMNS) ?? called?.ours[0];
  return `unknown column ${shown(name)}${meant === undefined ? ', put it into metadata' : `, did you mean ${meant}?`}`;
}
