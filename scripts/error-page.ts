/** docs/reference/errors.md, made from src/core/error-codes.ts. */
import { type Boundary, ERROR_CODES, WARNINGS } from '../src/core/error-codes.ts';

const TITLES: Readonly<Record<Boundary, string>> = {
  usage: 'The call and its files (usage)',
  model: 'The model folder (model)',
  workflow: 'Your agent (workflow)',
  grader: 'Your grader (grader)',
  gateway: 'Model calls, which your agent sees as HTTP errors (gateway)',
  engine: 'Sampling (engine)',
  trainer: 'Learning (trainer)',
  store: 'The store (store)',
  run: 'The run as a whole (run)',
};

const PAGE = `<!-- Generated from the code: npm run build:docs -->
# Error codes

Every failure carries one of these codes. Its message says what was found, its hint what to do. \`trainyard help NO_SIGNAL\` prints a row of this page.

**Exit** is the exit code of a command that ends with the error: 2 if you need to change the command or a file it names, else 1.

A failure inside one rollout does not end a command by itself: it is stored as that rollout's outcome or grade, and the run continues; the budgets
(\`FAILURE_BUDGET\`, \`GRADER_BUDGET\`) stop a run in which too much fails. A rollout whose grading failed has no reward, which is never the same as reward 0.
If a workflow returns although its last model call failed, the rollout carries the code of that call.
`;

export function errorsPage(): string {
  const sections = Object.entries(TITLES).map(([boundary, title]) => {
    const rows = Object.entries(ERROR_CODES)
      .filter(([, row]) => row.boundary === boundary)
      .map(([code, { exit, meaning, remedy }]) => `| \`${code}\` | ${exit} | ${meaning} | ${remedy} |`);
    return `\n## ${title}\n\n| code | exit | what it means | what to do |\n|---|---|---|---|\n${rows.join('\n')}\n`;
  });
  const warnings = Object.entries(WARNINGS).map(([code, meaning]) => `| \`${code}\` | ${meaning} |`);
  return `${PAGE}${sections.join('')}
## Warnings

A warning does not end a run. The first failed rollout and the first failed grading of each code are reported as warnings under their own code.

| code | what it means |
|---|---|
${warnings.join('\n')}
`;
}
