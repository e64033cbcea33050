/** docs/reference/tinker-server.md says the limits and losses that the server has. */
import { describe, expect, it } from 'vitest';
import { TINKER_LIMITS, WAITS } from '../../src/tinker/server/limits.ts';
import { LOSS_NAMES } from '../../src/tinker/server/training-model.ts';
import { sectionsOf, tableRows } from './markdown.ts';
import { readText } from './sources.ts';

const page = readText('docs/reference/tinker-server.md');
const section = (title: string): string =>
  sectionsOf(page)
    .find((one) => one.title === title)
    ?.lines.join('\n') ?? '';
const MiB = 1024 * 1024;

describe('docs/reference/tinker-server.md', () => {
  it('lists exactly the limits', () => {
    const values = tableRows(section('Limits')).map(([, value]) => value);
    const declared = Object.values(TINKER_LIMITS).map((value) => (value >= MiB ? `${value / MiB} MiB` : String(value)));
    expect(values.slice(-declared.length)).toEqual(declared);
  });

  it('lists exactly the losses', () => {
    const named = [...section('Losses').matchAll(/^\| (`.*?) \|/gm)].flatMap(([, cell]) => cell!.replaceAll('`', '').split(', '));
    expect(named.filter((name) => name !== 'loss_fn').sort()).toEqual([...LOSS_NAMES].sort());
  });

  it('says how long is waited', () => {
    expect(page).toContain(`waits ${WAITS.poll / 1000} s, then answers 408`);
    expect(page).toContain(`A request waits ${WAITS.gap / 1000} s for the \`seq_id\` before its own`);
    expect(page).toContain(`Results are kept for ${WAITS.result / 60_000} minutes`);
    expect(page).toContain(`a session without a sign of life for ${WAITS.session / 60_000} minutes ends`);
    expect(page).toContain(`silent for ${WAITS.silence / 1000} s`);
  });
});
