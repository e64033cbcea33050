/**
 * docs/reference/wire-protocol.md says what the gateway serves: its tables are compared with the route table, the dialects' lists of
 * parameters, the limits and the errors, both ways.
 */
import { describe, expect, it } from 'vitest';
import { FORK_CAUSES } from '../../src/core/types.ts';
import type { Parameters } from '../../src/gateway/dialects/dialect.ts';
import { DIALECTS } from '../../src/gateway/gateway.ts';
import { CAPABILITIES, GATEWAY_LIMITS, REFUSALS, ROUTES, STATUS } from '../../src/gateway/wire-protocol.ts';
import { TIMEOUTS } from '../../src/http/http-server.ts';
import { sectionsOf, tableRows } from './markdown.ts';
import { readText } from './sources.ts';

type Rows = readonly (readonly string[])[];

const sections = sectionsOf(readText('docs/reference/wire-protocol.md'));
/** The rows of a section's tables without their headers: cells of a header are plain words that no row begins with. */
const rowsOf = (title: string, ...headers: string[]): Rows =>
  tableRows(sections.find((section) => section.title === title)?.lines.join('\n') ?? '').filter(
    ([first]) => !headers.includes(first!),
  );
const bare = (cell: string | undefined): string => (cell ?? '').replaceAll('`', '');

/** A dialect's lists stand beside it, by its name. */
async function parametersOf(name: string): Promise<Parameters> {
  const module = (await import(`../../src/gateway/dialects/${name}.ts`)) as Record<string, Parameters>;
  return module[`${name}Parameters`]!;
}

describe('docs/reference/wire-protocol.md', () => {
  it('lists exactly the routes, with who may', () => {
    const documented = rowsOf('Routes', 'method').map(([method, path, who]) => `${method} ${bare(path)} ${who}`);
    expect(documented).toEqual(
      ROUTES.map(({ method, path, who }) => `${method} ${path.replace('+}', '}')} ${who.join(', ') || 'anyone'}`),
    );
  });

  it('says what each capability may', () => {
    expect(rowsOf('Identity', 'capability').map(([capability]) => capability)).toEqual([...CAPABILITIES]);
  });

  it.each(Object.entries(DIALECTS))('lists exactly the parameters of %s', async (path, { name }) => {
    const { honoured, ignored, refused } = await parametersOf(name);
    const lists = { honoured, ignored, refused: Object.keys(refused) };
    const documented = Object.fromEntries(rowsOf(`\`${path}\``, 'list').map(([list, names]) => [list, bare(names).split(', ')]));
    expect(documented).toEqual(Object.fromEntries(Object.entries(lists).map(([list, names]) => [list, names.toSorted()])));
  });

  it('has a route for each dialect and no lists of others', () => {
    expect(Object.keys(DIALECTS)).toEqual(ROUTES.filter(({ does }) => does === 'ask').map(({ path }) => path));
    const documented = sections
      .filter(({ depth, title }) => depth === 3 && title.startsWith('`'))
      .map(({ title }) => bare(title));
    expect(documented).toEqual(Object.keys(DIALECTS));
  });

  it('names exactly the causes of forks', () => {
    const text = sections.find(({ title }) => title === 'Forks')?.lines.join(' ') ?? '';
    const named = [...text.slice(text.indexOf('):')).matchAll(/`(\w+)`/g)].map(([, cause]) => cause);
    expect(named).toEqual([...FORK_CAUSES]);
  });

  it('lists exactly the limits and timeouts', () => {
    const documented = rowsOf('Limits', 'limit', 'timeout').map(([name, value]) => [bare(name), Number(value)]);
    expect(documented).toEqual([...Object.entries(GATEWAY_LIMITS), ...Object.entries(TIMEOUTS)]);
  });

  it('lists exactly the errors, with their statuses', () => {
    const documented = rowsOf('Errors', 'status').map(([status, code]) => `${status} ${bare(code)}`);
    const own = Object.entries(REFUSALS).map(([code, status]) => `${status} ${code}`);
    const shared = Object.values(STATUS).map(({ status, code }) => `${status} ${code}`);
    expect(documented.toSorted()).toEqual([...new Set([...own, ...shared])].toSorted());
  });
});
