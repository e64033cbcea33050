/** `trainyard model get` as a program, against a server that speaks the hub's protocol: killed in the middle, interrupted, and what it leaves to `--model`. */
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { type HubServer, hubServer } from '../fixtures/hub-server.ts';
import { type Ended, ROOT, saidIn, start, useScratch } from './command.ts';

const ID = 'Owner/Shop-Base';
const home = useScratch();
let hub: HubServer;

beforeEach(async () => {
  const names = ['config.json', 'model.safetensors', 'tokenizer.json', 'tokenizer_config.json'];
  const files = await Promise.all(names.map(async (name) => [name, await readFile(join(ROOT, 'models/base', name))] as const));
  hub = await hubServer(ID, new Map(files));
});
afterEach(() => hub[Symbol.asyncDispose]());

const trainyard = (cache: string, ...args: readonly string[]) =>
  start(args, ROOT, `export HF_ENDPOINT=${hub.url} HF_HUB_CACHE=${join(home.dir, cache)} HF_TOKEN=`);

/** Starts a download whose weights stop coming in the middle, and sends the signal when they have been waited for. */
async function endedInTheMiddle(cache: string, signal: NodeJS.Signals): Promise<Ended> {
  const { child, ended } = trainyard(cache, 'model', 'get', ID);
  await new Promise<void>((resolve) => {
    hub.spoil = (path) => {
      if (path !== 'model.safetensors') return undefined;
      setTimeout(resolve, 500);
      return { hold: 200_000 };
    };
  });
  child.kill(signal);
  hub.spoil = () => undefined;
  return await ended;
}

describe('trainyard model get', () => {
  it('goes on after a kill, and what it downloads is what --model takes', async () => {
    expect(await endedInTheMiddle('killed', 'SIGKILL')).toMatchObject({ signal: 'SIGKILL' });
    const folder = join(home.dir, 'killed/models--Owner--Shop-Base');
    expect(await readdir(folder)).toEqual(['blobs']);
    const early = await trainyard('killed', 'eval', 'examples/shop/agent.ts', '--model', ID).ended;
    expect(early).toMatchObject({ code: 2, stderr: expect.stringContaining(`trainyard model get ${ID}`) });

    const { code, stdout, stderr } = await trainyard('killed', 'model', 'get', ID).ended;
    expect({ code, stderr }).toEqual({ code: 0, stderr: expect.stringMatching(/model\.safetensors · 584 kB of 584 kB/) });
    expect(stdout).toContain(`trainyard eval <entry> --model ${ID}`);
    const ranges = hub.asked.filter(({ path, host }) => host === 'storage' && path.endsWith('model.safetensors'));
    expect(ranges.map(({ range }) => range)).toEqual([undefined, 'bytes=200000-']);

    const run = join(home.dir, 'run');
    const flags = ['--rows', '1-8', '--threads', '1', '--json', '--run', run];
    const measured = await trainyard('killed', 'eval', 'examples/shop/agent.ts', '--model', ID, ...flags).ended;
    expect(measured.code, measured.stderr).toBe(0);
    const snapshot = join(folder, 'snapshots', 'a1'.repeat(20));
    expect(saidIn(measured).find(({ type }) => type === 'eval-start')).toMatchObject({ model: snapshot });
    expect(JSON.parse(await readFile(join(run, 'run.json'), 'utf8')).settings.model).toBe(snapshot);
    const again = await trainyard('killed', 'eval', '--resume', run, '--model', ID, '--json').ended;
    expect(again.code, again.stderr).toBe(0);
  });

  it('says at Ctrl-C how to go on', async () => {
    const { code, stderr } = await endedInTheMiddle('interrupted', 'SIGINT');
    expect({ code, stderr }).toEqual({
      code: 130,
      stderr: expect.stringContaining('type the command again: it goes on where it'),
    });
  });

  it.each([
    [['model', 'get', 'SmolLM2'], 2, 'expected the name of a model at the Hugging Face hub, Owner/Name, found "SmolLM2"'],
    [['model', 'put', ID], 2, 'Allowed choices are get'],
    [['model', 'get', 'Owner/Shop-Bace'], 1, 'there is no model Owner/Shop-Bace, or none that is public'],
  ])('refuses %j', async (args, code, said) => {
    expect(await trainyard('refused', ...args).ended).toMatchObject({ code, stderr: expect.stringContaining(said) });
  });
});
