/**
 * How many files of src/ the work on one thing enters: one rollout, one chat completion, one row, one Tinker pass. Run by `npm run house` in a
 * process of its own; prints one JSON object.
 *
 * V8's precise coverage counts calls: each walk is done once to warm up, the counters are reset, and it is done again. Worker threads and child
 * processes are not seen. The rollout is the stretch between the same point of two rollouts that follow each other.
 */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { Session } from 'node:inspector/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { BASE_MODEL, train } from 'trainyard';
import { EmbeddedModel, Gateway, listen, loadRenderer, readTasks } from 'trainyard/loop';
import { REGULAR, randomSample } from '../fixtures/nn/models.ts';
import { passOf, scratch, serve } from '../fixtures/tinker/server.ts';
import { repository } from './sources.ts';

const OURS = pathToFileURL(join(repository, 'src')).href;

class Tracer {
  readonly #session = new Session();

  async start(): Promise<void> {
    this.#session.connect();
    await this.#session.post('Profiler.enable');
    await this.#session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
  }

  /** Files of src/ in which a function was entered since the last call; a module's own evaluation is no function. */
  async files(): Promise<readonly string[]> {
    const { result } = await this.#session.post('Profiler.takePreciseCoverage');
    return result
      .filter(
        ({ url, functions }) => url.startsWith(OURS) && functions.slice(1).some(({ ranges }) => (ranges[0]?.count ?? 0) > 0),
      )
      .map(({ url }) => url.slice(OURS.length + 1))
      .sort();
  }

  async walk(once: () => Promise<unknown>): Promise<readonly string[]> {
    await once();
    await this.files();
    await once();
    return await this.files();
  }
}

/** In `train`, with groups, a grader in its own process and the store: from the beginning of the third rollout to that of the fourth. */
async function rolloutWalk(tracer: Tracer, folder: string): Promise<readonly string[]> {
  let begun = 0;
  let walked: readonly string[] = [];
  globalThis.rolloutBegins = async () => {
    begun++;
    if (begun !== 3 && begun !== 4) return;
    const files = await tracer.files();
    if (begun === 4) walked = files;
  };
  await train({
    entry: fileURLToPath(new URL('../fixtures/house/agent.ts', import.meta.url)),
    tasks: Array.from({ length: 4 }, (_, i) => ({ id: `t${i}`, prompt: `Say ${i}.`, answer: `${i}` })),
    heldOut: undefined,
    run: join(folder, 'run'),
    steps: 1,
    group: 4,
    groupsPerStep: 1,
    concurrency: 1,
    threads: 1,
    graderWorkers: 1,
  });
  return walked;
}

async function completionWalk(tracer: Tracer): Promise<readonly string[]> {
  await using model = await EmbeddedModel.open({ dir: BASE_MODEL, threads: 1 });
  const gateway = new Gateway({ engine: model, renderer: await loadRenderer(BASE_MODEL), modelName: 'policy' });
  await using _listener = await listen(gateway);
  const signal = AbortSignal.timeout(60_000);
  const session = gateway.open({
    identity: { rolloutId: 'r', groupId: 'g', taskId: 't', purpose: 'train' },
    roles: { policy: { trainable: true } },
    sampling: { temperature: 1, topP: 1, topK: 0, maxTokens: 4 },
    limits: { turns: 4, tokens: 128, deadlineMs: 60_000 },
    seed: 1,
    signal,
  });
  const { baseURL, apiKey, name } = session.model('policy');
  const body = JSON.stringify({ model: name, messages: [{ role: 'user', content: 'Hello' }] });
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  return await tracer.walk(async () => {
    const response = await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
    if (!response.ok) throw new Error(await response.text());
    await response.json();
  });
}

async function rowWalk(tracer: Tracer, folder: string): Promise<readonly string[]> {
  const file = join(folder, 'one.jsonl');
  await writeFile(file, '{"id":"a","prompt":"Say 1.","answer":"1"}\n');
  return await tracer.walk(() => readTasks(file));
}

async function tinkerWalk(tracer: Tracer): Promise<readonly string[]> {
  const home = await scratch();
  const served = await serve(home);
  const model = await served.client.model();
  const { encodePassRequest } = await import('../../src/engines/tinker/wire/protobuf.ts');
  const samples = [randomSample(REGULAR, 9, 1)];
  let seq = 0;
  const bodies = [1, 2].map((number) => encodePassRequest(passOf(model, number, samples)));
  const files = await tracer.walk(async () => {
    const sent = await served.client.send('forward_backward', bodies[seq++], { 'content-type': 'application/x-protobuf' });
    await served.client.protobufResult({ status: sent.status, json: (await sent.json()) as Record<string, unknown> });
  });
  await served.close();
  await home.remove();
  return files;
}

const folder = await mkdtemp(join(tmpdir(), 'trainyard-house-'));
const tracer = new Tracer();
await tracer.start();
const walks = {
  completion: await completionWalk(tracer),
  row: await rowWalk(tracer, folder),
  tinker: await tinkerWalk(tracer),
  rollout: await rolloutWalk(tracer, folder),
};
await rm(folder, { recursive: true, force: true });
process.stdout.write(`${JSON.stringify(walks)}\n`);
