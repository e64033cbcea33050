/** Who an agent written with a framework of this folder talks to; those of the examples are in test/e2e/closed-network.full.test.ts. */
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { ROOT } from '../../cli/command.ts';
import { runClosed } from '../../fixtures/closed-network/run.ts';

it('an agent written with Mastra reaches nobody but the policy', async () => {
  const entry = fileURLToPath(new URL('./mastra-entry.ts', import.meta.url));
  const tasks = join(ROOT, 'examples/triage/held-out.jsonl');
  const { code, output, reached } = await runClosed([join(ROOT, 'src/cli/main.ts'), 'try', entry, '--tasks', tasks]);
  expect({ code, reached }, output).toEqual({ code: 0, reached: [] });
  expect(output).toContain('completed · reward 1');
});
