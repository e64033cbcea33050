import { afterEach, expect, it, vi } from 'vitest';
import { buildProgram } from './program.ts';

afterEach(() => vi.restoreAllMocks());

async function helpOn(...topic: readonly string[]): Promise<string> {
  const printed = vi.spyOn(console, 'log').mockImplementation(() => {});
  await buildProgram().parseAsync(['help', ...topic], { from: 'user' });
  const text = printed.mock.calls.join('\n');
  printed.mockClear();
  return text;
}

it('help shows a page of the guide, what an error code means, and lists the pages', async () => {
  expect(await helpOn('guide/train')).toMatch(/^# Train for hours/);
  expect(await helpOn('reference/view')).toMatch(/^# /);
  expect(await helpOn('NO_SIGNAL')).toMatch(/^NO_SIGNAL \(run, exit code 1\)\n {2}\S.*\.\n {2}\S.*\.$/);
  const listed = await helpOn();
  expect(listed).toMatch(/\nGuide, in reading order:\n {2}start +Start\n/);
  expect(listed).toMatch(/\n {2}errors +Errors\n[\s\S]*\n {2}reference\/view +View\n/);
});

it('the verbs are in groups, in the order in which one needs them', () => {
  const titles = buildProgram()
    .helpInformation()
    .match(/^\w[\w ]*:$/gm);
  const groups = ['Start:', 'Measure:', 'Train:', 'Many machines:', 'Look:', 'Models and servers:', 'More:'];
  expect(titles).toEqual(['Options:', ...groups]);
});
