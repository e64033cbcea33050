/**
 * Exported weights in other people's programs: PEFT loads the adapter's folder, transformers the merged model, llama.cpp's server the GGUF
 * adapter on a float32 base. After each of a dozen prompts their log-probabilities are those of PEFT on the adapter that was exported.
 *
 * The base is SmolLM2-135M, unpacked to float32; the adapter is random, rank 8, on all seven modules. llama.cpp computes with a quantised
 * base in 8 bits, and a model in 16 bits is rounded: how far these are apart is told, not judged.
 */
import { mkdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { freePort, runProgram, startServer, trainyard } from './child.ts';
import { prepareLlamaCpp, SERVER, SMOLLM2 } from './llama-cpp.ts';
import { cache } from './python-environment.ts';
import type { Report } from './report.ts';

const FOLDER = join(cache, 'export');
const TOLERANCE = 1e-3;
/** Most likely tokens of which llama.cpp tells the log-probability. */
const TOLD = 200;

/** After each prompt, the log-probability of each token that is told. */
type Tables = readonly (readonly number[] | ReadonlyMap<number, number>)[];

export async function checkExport(report: Report, python: string): Promise<void> {
  const missing = prepareLlamaCpp((line) => report.note(line));
  if (missing !== undefined) return report.skip('exported weights', missing);
  await rm(FOLDER, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  const at = (name: string): string => join(FOLDER, name);
  const peer = (...args: readonly string[]): Promise<string> =>
    runProgram({ command: python, args: [join(import.meta.dirname, 'export_check.py'), ...args], limitMs: 15 * 60_000 });
  const logprobs = async (...of: readonly string[]): Promise<Tables> => {
    await peer('logprobs', FOLDER, at('out.json'), ...of);
    return JSON.parse(await readFile(at('out.json'), 'utf8')) as number[][];
  };
  const exported = (...flags: readonly string[]): Promise<string> => trainyard('export', at('adapter'), ...flags);
  await peer('prepare', SMOLLM2, FOLDER);
  const anchor = (await logprobs(at('base'), at('adapter'))) as readonly (readonly number[])[];
  const base = (await logprobs(at('base'))) as typeof anchor;
  report.note(`the adapter moves log-probabilities by ${compare(anchor, base, Infinity)}`);

  await exported('--adapter', at('peft'), '--merged', at('merged'), '--gguf-adapter', at('adapter.gguf'));
  await report.check('PEFT loads the adapter as a PEFT folder', async () =>
    compare(anchor, await logprobs(at('base'), at('peft')), TOLERANCE),
  );
  await report.check('transformers loads the merged model', async () => compare(anchor, await logprobs(at('merged')), TOLERANCE));
  await report.check('llama.cpp serves the GGUF adapter on a float32 base', async () =>
    compare(anchor, await served(at('base.gguf'), at('adapter.gguf')), TOLERANCE),
  );
  await exported('--merged', at('of-gguf'), '--base', SMOLLM2, '--dtype', 'f32');
  await report.check('transformers loads the model merged from a quantised GGUF base', async () =>
    compare(anchor, await logprobs(at('of-gguf')), TOLERANCE),
  );
  report.note(`llama.cpp on the Q4_1 base: ${compare(anchor, await served(SMOLLM2, at('adapter.gguf')), Infinity)}`);
  report.note(`the Q4_1 base without an adapter: ${compare(base, await served(SMOLLM2), Infinity)}`);
  for (const dtype of ['f16', 'bf16']) {
    await exported('--merged', at(dtype), '--dtype', dtype);
    report.note(`merged in ${dtype}: ${compare(anchor, await logprobs(at(dtype)), Infinity)}`);
  }
}

function compare(anchor: readonly (readonly number[])[], found: Tables, tolerance: number): string {
  if (found.length !== anchor.length) throw new Error(`${found.length} prompts, expected ${anchor.length}`);
  const apart = found.flatMap((table, i) => [...table.entries()].map(([id, value]) => Math.abs(value - anchor[i]![id]!)));
  const furthest = apart.reduce((a, b) => Math.max(a, b));
  // Written so that NaN is a failure.
  if (!(furthest <= tolerance)) throw new Error(`${furthest} apart, expected at most ${tolerance}`);
  const mean = apart.reduce((a, b) => a + b) / apart.length;
  return `${apart.length} log-probabilities, ${furthest.toExponential(1)} apart at most, ${mean.toExponential(1)} on average`;
}

interface Answer {
  readonly completion_probabilities: readonly { readonly top_logprobs: readonly { id: number; logprob: number }[] }[];
}

/** By llama.cpp, in float32 wherever it can. */
async function served(model: string, adapter?: string): Promise<Tables> {
  const port = await freePort();
  const precise = ['--cache-type-k', 'f32', '--cache-type-v', 'f32', '--flash-attn', 'off'];
  const adapted = adapter === undefined ? [] : ['--lora', adapter];
  const args = ['--model', model, ...adapted, '--port', `${port}`, '--ctx-size', '512', '--parallel', '1', ...precise];
  await using _server = await startServer({ command: SERVER, args, limitMs: 120_000 }, `http://127.0.0.1:${port}/health`);
  const tables: ReadonlyMap<number, number>[] = [];
  for (const prompt of JSON.parse(await readFile(join(FOLDER, 'prompts.json'), 'utf8')) as number[][]) {
    const body = JSON.stringify({ prompt, n_predict: 1, n_probs: TOLD, temperature: 0, cache_prompt: false });
    const answer = (await (await ask(`http://127.0.0.1:${port}/completion`, body)).json()) as Answer;
    const told = answer.completion_probabilities[0]!.top_logprobs;
    if (told.length !== TOLD) throw new Error(`${told.length} log-probabilities told, expected ${TOLD}`);
    tables.push(new Map(told.map(({ id, logprob }) => [id, logprob])));
  }
  return tables;
}

/** The server answers 503 while it loads the model. */
async function ask(url: string, body: string): Promise<Response> {
  for (;;) {
    const answer = await fetch(url, { method: 'POST', body, signal: AbortSignal.timeout(60_000) });
    if (answer.ok) return answer;
    if (answer.status !== 503) throw new Error(`${answer.status} ${await answer.text()}`);
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
}
