/** Config files as they are read: what they may hold, and everything that is wrong with one at once. */
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { defineConfig } from './config.ts';
import { findConfig, readConfig } from './config-file.ts';

let home = '';
beforeAll(async () => {
  home = await mkdtemp(join(tmpdir(), 'trainyard-config-'));
});
afterAll(() => rm(home, { recursive: true }));

async function write(name: string, text: string): Promise<string> {
  const path = join(home, name);
  await mkdir(dirname(path), { recursive: true });
  await writeFile(path, text);
  return path;
}
/** Only what never ends is waited for so shortly. */
const read = async (name: string, text: string) =>
  await readConfig(await write(name, text), text.includes('() => {}') ? 50 : undefined);
const refusal = (name: string, text: string): Promise<string> =>
  read(name, text).then(
    () => 'accepted',
    (thrown: Error) => thrown.message.replace(`${home}/`, ''),
  );

describe('a config file', () => {
  it('is code or TOML, and its paths are relative to it', async () => {
    const expected = {
      settings: { entry: join(home, 'sub/agent.ts'), model: 'Owner/Name', limits: { turns: 4 } },
      runs: { big: { steps: 9, tasks: join(home, 'more.jsonl') } },
    };
    const config =
      "{ entry: './agent.ts', model: 'Owner/Name', limits: { turns: 4 }, runs: { big: { steps: 9, tasks: '../more.jsonl' } } }";
    expect(await read('sub/a.config.mjs', `export default ${config};`)).toMatchObject(expected);
    expect(await read('sub/b.config.mjs', `export default Promise.resolve(${config});`)).toMatchObject(expected);
    const toml =
      'entry = "agent.ts"\nmodel = "Owner/Name"\n[limits]\nturns = 4\n[runs.big]\nsteps = 9\ntasks = "../more.jsonl"\n';
    expect(await read('sub/trainyard.toml', toml)).toMatchObject(expected);
  });

  it('is refused with every problem and its place, and without a value that may be a secret', async () => {
    const config = {
      ...{ stepz: 3, deadline: 9, apiKey: 'sk-very-secret', apiKeyEnv: 'sk-very-secret', limits: { turn: 1 }, engine: 'gpu' },
      runs: { a: { group: 'eight', openai_token: 'sk-very-secret' }, b: 7 },
    };
    const found = await refusal('wrong.mjs', `export default ${JSON.stringify(config)};`);
    expect(found).not.toContain('very-secret');
    expect(found.split('; ')).toEqual([
      'wrong.mjs: stepz: unknown setting, did you mean steps?',
      'deadline: unknown setting, did you mean limits.deadlineMs?',
      'apiKey: secrets do not belong in a config file',
      "name the variable that holds it: apiKeyEnv: 'OPENAI_API_KEY'",
      'apiKeyEnv: expected the name of an environment variable, found String',
      'limits.turn: unknown setting, did you mean limits.turns?',
      'engine: expected embedded, tinker, openai or anthropic, found String',
      expect.stringMatching(/^runs\.a\.group: expected a whole number from 2 .*, found String$/),
      'runs.a.openai_token: secrets do not belong in a config file',
      "name the variable that holds it: apiKeyEnv: 'OPENAI_API_KEY'",
      'runs.b: expected an object of settings, found Number',
    ]);
  });

  it.each([
    ['throws.mjs', "throw new Error('no luck')", 'cannot import throws.mjs: no luck'],
    ['waits.mjs', 'export default await new Promise(() => {});', 'waits.mjs was not loaded within 0.05 s'],
    ['promises.mjs', 'export default new Promise(() => {});', 'promises.mjs was not loaded within 0.05 s'],
    ['nothing.mjs', 'export const steps = 3;', 'nothing.mjs: expected an object of settings, found no default export'],
    ['text.mjs', "export default 'steps';", 'found a default export that is String'],
    ['bad.toml', 'steps = 3\nkey = sk-very-secret', 'bad.toml:2:7: Invalid TOML document'],
    ['deep.toml', `a = ${'['.repeat(5000)}`, 'deep.toml:1:'],
    [
      'odd.toml',
      'steps = nan\nseed = 1979-05-27\n__proto__ = 1',
      'steps: expected a whole number from 1 to 1000000, found NaN; seed: expected a whole number of at least 0, found Date',
    ],
    ['large.toml', `# ${'x'.repeat(1_000_000)}`, 'large.toml: expected at most 1000000 characters'],
  ])('%s is refused clearly', async (name, text, message) => {
    const found = await refusal(name, text);
    expect(found).toContain(message);
    expect(found).not.toContain('very-secret');
  });

  it('is found in a folder, if there is one', async () => {
    expect(findConfig(join(home, 'none'))).toBeUndefined();
    const path = await write('one/trainyard.config.ts', '');
    expect(findConfig(join(home, 'one'))).toBe(path);
    await write('one/trainyard.toml', '');
    expect(() => findConfig(join(home, 'one'))).toThrow('expected one config file, found');
  });

  it('has types that refuse other names', () => {
    defineConfig({ entry: 'agent.ts', steps: 3, limits: { turns: 2 }, runs: { a: { loss: 'ppo', n: 4 } } });
    // @ts-expect-error: a name that no setting has
    defineConfig({ stepz: 3 });
    // @ts-expect-error: a loss that there is not
    defineConfig({ runs: { a: { loss: 'sgd' } } });
  });
});

describe('a TOML file of Osmosis', () => {
  it('becomes our settings, with a warning for what has no counterpart', async () => {
    await write('rollouts/math/main.ts', '');
    const toml = `
      [experiment]
      rollout = "math"
      entrypoint = "main.ts"
      model_path = "Qwen/Qwen3-0.6B"
      dataset = "train.jsonl"
      branch = "main"
      [training]
      lr = 1e-5
      total_epochs = 2
      n_samples_per_prompt = 4
      rollout_batch_size = 16
      max_response_length = 512
      agent_workflow_timeout_s = 450
      grader_timeout_s = 1.5
      [sampling]
      rollout_temperature = 0.9
      [checkpoints]
      eval_interval = 5
      checkpoint_save_freq = 2
      [advanced]
      steps = 7
      [env]
      MY_MODE = "fast"`;
    const { settings, warnings, env } = await read('configs/training/a.toml', toml);
    expect(settings).toEqual({
      ...{
        entry: join(home, 'rollouts/math/main.ts'),
        model: 'Qwen/Qwen3-0.6B',
        tasks: join(home, 'configs/training/train.jsonl'),
      },
      ...{
        learningRate: 1e-5,
        group: 4,
        groupsPerStep: 16,
        limits: { tokens: 512, deadlineMs: 450_000 },
        graderDeadlineMs: 1500,
      },
      ...{ temperature: 0.9, evalEvery: 5, checkpointEvery: 2, steps: 7 },
    });
    expect(warnings.map((warning) => warning.split(' ', 1)[0])).toEqual(['experiment.branch', 'training.total_epochs']);
    expect(env).toEqual({ MY_MODE: 'fast' });
    const evaluation = await read(
      'eval.toml',
      '[experiment]\ndataset = "d.jsonl"\n[evaluation]\nlimit = 20\nn = 4\nbatch_size = 8',
    );
    expect(evaluation.settings).toEqual({ heldOut: join(home, 'd.jsonl'), rows: '1-20', n: 4, concurrency: 8 });
  });

  it('is refused with the problems of all sections together', async () => {
    const toml = `
      [experiment]
      entrypoint = "../../elsewhere.ts"
      branch = "main"
      commit_sha = "0123abc"
      [training]
      foo = 1
      eval_interval = 5
      lr = "fast"
      [sampling]
      bar = 2
      [advanced]
      stepz = 3
      [unknown]
      [env]
      lower = "x"
      _OSMOSIS_X = "x"
      NUMBER = 3
      TWICE = "x"
      [secrets]
      required = ["TWICE", "not-a-name", "NO_SUCH_KEY_HERE"]`;
    expect((await refusal('osmosis.toml', toml)).split('; ')).toEqual([
      'osmosis.toml: training.foo: unrecognized key',
      'training.eval_interval: unrecognized key, it belongs in [checkpoints]',
      'sampling.bar: unrecognized key',
      'unknown: unrecognized section',
      'experiment: expected branch or commit_sha, found both',
      'experiment.entrypoint: expected a path inside the folder of the rollout',
      'env.lower: expected a name such as MY_VARIABLE',
      'env._OSMOSIS_X: expected a name such as MY_VARIABLE',
      'env.NUMBER: expected a text, found Number',
      'secrets.required: TWICE is there twice, or in [env] too',
      'secrets.required: expected names of variables such as MY_KEY',
      'secrets.required: expected NO_SUCH_KEY_HERE in the environment, found none',
      'training.lr: expected a number above 0, at most 1, found String',
      'advanced.stepz: unknown setting, did you mean steps?',
    ]);
  });
});
