/**
 * The reference pages say what the servers do: routes, parameters, limits, errors and waits are compared with the code, both ways.
 */
import { describe, expect, it } from 'vitest';
import { FORK_CAUSES } from '../../src/core/types.ts';
import { TINKER_LIMITS, WAITS } from '../../src/engines/tinker/server/limits.ts';
import { LOSS_NAMES } from '../../src/engines/tinker/server/training-model.ts';
import type { Parameters } from '../../src/gateway/dialects/dialect.ts';
import { DIALECTS } from '../../src/gateway/gateway.ts';
import { CAPABILITIES, GATEWAY_LIMITS, REFUSALS, ROUTES, STATUS } from '../../src/gateway/wire-protocol.ts';
import { TIMEOUTS } from '../../src/http/http-server.ts';
import { FLOW_CAPABILITIES, FLOW_REFUSALS, FLOW_ROUTES, step } from '../../src/shapes/flows/flow-protocol.ts';
import { sectionsOf, tableRows } from './markdown.ts';
import { readText } from './sources.ts';

/** Words that head a first column, and that no row begins with. */
const HEADERS = ['method', 'status', 'field', 'capability', 'list', 'limit', 'timeout', 'loss_fn'];

function pageOf(name: string) {
  const page = readText(`docs/reference/${name}.md`);
  const sections = sectionsOf(page);
  const section = (title: string): string => sections.find((one) => one.title === title)?.lines.join('\n') ?? '';
  const rows = (title: string) => tableRows(section(title)).filter(([first]) => !HEADERS.includes(bare(first)));
  return { page, sections, section, rows };
}
const bare = (cell: string | undefined): string => (cell ?? '').replaceAll('`', '');
const coded = (errors: Readonly<Record<string, number>>) => Object.entries(errors).map(([code, status]) => `${status} ${code}`);

/** A dialect's lists stand beside it, by its name. */
async function parametersOf(name: string): Promise<Parameters> {
  const module = (await import(`../../src/gateway/dialects/${name}.ts`)) as Record<string, Parameters>;
  return module[`${name}Parameters`]!;
}

describe('docs/reference/contract.md', () => {
  it('names tests that exist, for each of ten promises', () => {
    const promises = tableRows(pageOf('contract').page).filter(([first]) => /^\d/.test(first ?? ''));
    expect(promises).toHaveLength(10);
    for (const [promise = '', , tests = ''] of promises) {
      let file = '';
      for (const named of tests.split(' · ')) {
        const [, path = file, title = ''] = /^(?:`([^`]+)`: )?(.+)$/.exec(named) ?? [];
        file = path;
        expect(readText(file), `${promise}: ${title}`).toContain(title);
      }
    }
  });
});

describe('docs/reference/wire-protocol.md', () => {
  const { rows, section, sections } = pageOf('wire-protocol');

  it('lists exactly the routes, with who may', () => {
    const documented = rows('Routes').map(([method, path, who]) => `${method} ${bare(path)} ${who}`);
    expect(documented).toEqual(
      ROUTES.map(({ method, path, who }) => `${method} ${path.replace('+}', '}')} ${who.join(', ') || 'anyone'}`),
    );
  });

  it('says what each capability may', () => {
    expect(rows('Identity').map(([capability]) => capability)).toEqual([...CAPABILITIES]);
  });

  it.each(Object.entries(DIALECTS))('lists exactly the parameters of %s', async (path, { name }) => {
    const { honoured, ignored, refused } = await parametersOf(name);
    const lists = { honoured, ignored, refused: Object.keys(refused) };
    const documented = Object.fromEntries(rows(`\`${path}\``).map(([list, names]) => [list, bare(names).split(', ')]));
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
    const text = section('Forks');
    const named = [...text.slice(text.indexOf('):')).matchAll(/`(\w+)`/g)].map(([, cause]) => cause);
    expect(named).toEqual([...FORK_CAUSES]);
  });

  it('lists exactly the limits and timeouts', () => {
    const documented = rows('Limits').map(([name, value]) => [bare(name), Number(value)]);
    expect(documented).toEqual([...Object.entries(GATEWAY_LIMITS), ...Object.entries(TIMEOUTS)]);
  });

  it('lists exactly the errors, with their statuses', () => {
    const documented = rows('Errors').map(([status, code]) => `${status} ${bare(code)}`);
    const shared = Object.values(STATUS).map(({ status, code }) => `${status} ${code}`);
    expect(documented.toSorted()).toEqual([...new Set([...coded(REFUSALS), ...shared])].toSorted());
  });
});

describe('docs/reference/agent-flow.md', () => {
  const { rows } = pageOf('agent-flow');

  it('lists exactly the routes and who may, the errors with their statuses, and the fields of a step', () => {
    const routes = rows('Routes').map(([method, path]) => `${method} ${bare(path)}`);
    expect(routes).toEqual(FLOW_ROUTES.map(({ method, path }) => `${method} ${path}`));
    expect(FLOW_CAPABILITIES).toEqual(['flow', 'admin']);
    expect(rows('Errors').map(([status, code]) => `${status} ${bare(code)}`)).toEqual(coded(FLOW_REFUSALS));
    const fields = rows('`submit_steps`').flatMap(([names]) => bare(names).split(', '));
    expect(fields.toSorted()).toEqual(Object.keys(step.shape).toSorted());
  });
});

describe('docs/reference/tinker-server.md', () => {
  const { page, rows } = pageOf('tinker-server');
  const MiB = 1024 * 1024;

  it('lists exactly the limits and losses, and says how long is waited', () => {
    const declared = Object.values(TINKER_LIMITS).map((value) => (value >= MiB ? `${value / MiB} MiB` : String(value)));
    expect(
      rows('Limits')
        .map(([, value]) => value)
        .slice(-declared.length),
    ).toEqual(declared);
    const losses = rows('Losses').flatMap(([names]) => bare(names).split(', '));
    expect(losses.toSorted()).toEqual([...LOSS_NAMES].toSorted());
    expect(page).toContain(`waits ${WAITS.poll / 1000} s, then answers 408`);
    expect(page).toContain(`A request waits ${WAITS.gap / 1000} s for the \`seq_id\` before its own`);
    expect(page).toContain(`Results are kept for ${WAITS.result / 60_000} minutes`);
    expect(page).toContain(`a session without a sign of life for ${WAITS.session / 60_000} minutes ends`);
    expect(page).toContain(`silent for ${WAITS.silence / 1000} s`);
  });
});
