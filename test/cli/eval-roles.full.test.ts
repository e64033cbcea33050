/** `trainyard eval --trainable`: a model is measured in the roles it was trained in. */
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { trainyard, useScratch } from './command.ts';

const home = useScratch();

it('lets the policy play these roles, and default models the others', async () => {
  const entry = await home.write(
    'roles.ts',
    `import { defineWorkflow } from 'trainyard';
    export default defineWorkflow({
      roles: { buyer: { default: () => 'buyer by default' }, seller: { default: () => 'seller by default' } },
      trainable: ['buyer'],
      async run(ctx) {
        const said = [];
        for (const role of ['buyer', 'seller']) said.push((await ctx.model(role).generate({ messages: ctx.prompt, maxTokens: 4 })).text);
        return { reward: Number(said[0] === 'buyer by default') + 2 * Number(said[1] === 'seller by default') };
      },
    });`,
  );
  const tasks = await home.write('held-out.jsonl', '{"prompt":"hello","answer":1}\n');
  const reward = async (...flags: string[]): Promise<unknown> => {
    const run = join(home.dir, `run${flags.join()}`);
    const { code, stdout } = await trainyard('eval', entry, '--held-out', tasks, '--run', run, '--json', ...flags);
    expect(code).toBe(0);
    return JSON.parse(stdout.trim().split('\n').at(-1) ?? '').meanReward;
  };
  expect(await reward(), 'as the workflow says').toBe(2);
  expect(await reward('--trainable', 'seller')).toBe(1);
  expect(await reward('--trainable', 'seller,buyer')).toBe(0);
});
