/** docs/reference/agent-flow.md says what the agent-flow routes are: its tables are compared with the code, both ways. */
import { describe, expect, it } from 'vitest';
import { FLOW_CAPABILITIES, FLOW_REFUSALS, FLOW_ROUTES, step } from '../../src/flows/flow-protocol.ts';
import { sectionsOf, tableRows } from './markdown.ts';
import { readText } from './sources.ts';

const sections = sectionsOf(readText('docs/reference/agent-flow.md'));
const rowsOf = (title: string, header: string): readonly (readonly string[])[] =>
  tableRows(sections.find((section) => section.title === title)?.lines.join('\n') ?? '').filter(([first]) => first !== header);
const bare = (cell: string | undefined): string => (cell ?? '').replaceAll('`', '');

describe('docs/reference/agent-flow.md', () => {
  it('lists exactly the routes, and who may', () => {
    expect(rowsOf('Routes', 'method').map(([method, path]) => `${method} ${bare(path)}`)).toEqual(
      FLOW_ROUTES.map(({ method, path }) => `${method} ${path}`),
    );
    expect(FLOW_CAPABILITIES).toEqual(['flow', 'admin']);
  });

  it('lists exactly the errors, with their statuses', () => {
    const documented = rowsOf('Errors', 'status').map(([status, code]) => `${status} ${bare(code)}`);
    expect(documented).toEqual(Object.entries(FLOW_REFUSALS).map(([code, status]) => `${status} ${code}`));
  });

  it('lists exactly the fields of a step', () => {
    const documented = rowsOf('`submit_steps`', 'field').flatMap(([names]) => bare(names).split(', '));
    expect(documented.toSorted()).toEqual(Object.keys(step.shape).toSorted());
  });
});
