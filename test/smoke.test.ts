/**
 * The whole command, end to end, once for each thing it does: train, kill and resume, evaluate and resume, isolation,
 * one example of each shape, serve. Every part is real. The full tier (`npm run test:full`) has the many variations.
 */
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import OpenAI from 'openai';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Ended, jsonLines, killedAt, ROOT, start, trainyard } from './cli/command.ts';
import { type Home, smallHome } from './e2e/small-run.ts';
import { needsSandbox } from './fixtures/sandbox.ts';
import { limitsMemory } from './fixtures/system.ts';

let home: Home;
beforeAll(async () => {
  home = await smallHome();
});
afterAll(() => home.remove());

const lastLine = ({ stdout }: Ended): unknown => jsonLines(stdout).at(-1);

/** Where memory cannot be limited, one warning says so. */
const SILENT = limitsMemory ? '' : expect.stringMatching(/^\S+ TrainyardWarning: [^\n]*memory limits[^\n]*\n[^\n]*\n$/);

async function finished(...args: readonly string[]): Promise<Ended> {
  const ended = await trainyard(...args, '--json');
  expect({ code: ended.code, stderr: ended.stderr }).toEqual({ code: 0, stderr: SILENT });
  return ended;
}

const weights = (run: string): Promise<Buffer> => readFile(join(run, 'checkpoints', 'step-000003', 'model.safetensors'));

describe('a run', () => {
  const at = (name: string): string => join(home.dir, name);

  const whole = (): string => at('whole');
  let done: unknown;
  beforeAll(async () => {
    done = lastLine(await finished(...home.flags(whole(), 3)));
  });

  it('that is killed and resumed has the weights of one that was not', async () => {
    const killed = at('killed');
    expect(done).toMatchObject({ type: 'done', steps: 3, before: { n: 5 }, after: { n: 5 } });
    await killedAt('"step":2,', [...home.flags(killed, 3), '--json']);
    await finished('train', '--resume', killed);
    expect((await weights(killed)).equals(await weights(whole()))).toBe(true);
    expect(lastLine(await finished('verify', killed))).toMatchObject({ different: 0 });
  });

  it('is measured by its checkpoint: an evaluation that is killed and resumed has the result of one that was not', async () => {
    const evaluation = ['eval', home.entry, '--model', join(whole(), 'checkpoints', 'step-000003')];
    const measured = lastLine(await finished(...evaluation, '--run', at('measured'), '--n', '4'));
    await killedAt('"eval-start"', [...evaluation, '--run', at('measured-again'), '--n', '4', '--concurrency', '1', '--json']);
    const resumed = lastLine(await finished('eval', '--resume', at('measured-again')));
    const { success } = measured as { readonly success: number };
    expect(resumed).toMatchObject({ type: 'done', success });
    expect(await readFile(at('measured-again/metrics.json'), 'utf8')).toBe(await readFile(at('measured/metrics.json'), 'utf8'));
  });

  it('whose rollouts are isolated learns from what they return', needsSandbox, async () => {
    const entry = await home.write('isolated.ts', ISOLATED);
    const run = ['--tasks', join(home.dir, 'train.jsonl'), '--run', at('isolated'), '--steps', '1', '--groups-per-step', '1'];
    expect(lastLine(await finished('train', entry, ...run, '--group', '4'))).toMatchObject({ type: 'done', steps: 1 });
  });
});

const ISOLATED = `
import { defineWorkflow } from 'trainyard';
export default defineWorkflow({
  isolation: 'process',
  async run(ctx) {
    const { text } = await ctx.model().generate({ messages: ctx.prompt, maxTokens: 8 });
    return { reward: text.length % 2 };
  },
});
`;

describe('one example of each shape', () => {
  const triage = (file: string): string => join(ROOT, 'examples', 'triage', file);
  it.each([
    ['areal', 'agent'],
    ['osmosis', 'minimal'],
    ['agent-flow', 'single-step'],
    ['tuner', 'simple-agent'],
  ])('%s: one step of %s.ts', async (folder, name) => {
    const run = ['--tasks', triage('train.jsonl'), '--steps', '1', '--groups-per-step', '1', '--group', '4'];
    const entry = join(ROOT, 'examples', folder, `${name}.ts`);
    expect(lastLine(await finished('train', entry, ...run, '--run', join(home.dir, folder)))).toMatchObject({ steps: 1 });
  });
});

describe('trainyard serve', () => {
  it('answers an OpenAI client, and keeps what was said', async () => {
    const { child, ended, prints, stdout } = start(['serve', '--json', '--threads', '1', '--run', join(home.dir, 'served')]);
    await prints('\n');
    const { baseURL, apiKey } = JSON.parse(stdout().split('\n')[0]!) as { readonly baseURL: string; readonly apiKey: string };
    const client = new OpenAI({ baseURL, apiKey });
    const messages = [{ role: 'user' as const, content: 'How much is the lamp?' }];
    await client.chat.completions.create({ model: 'any', messages, max_tokens: 4 });
    child.kill('SIGINT');
    expect(lastLine(await ended)).toMatchObject({ type: 'served' });
  });
});
