/**
 * SkyRL's Tinker server on this machine, as a child process: started with sizes that fit together, warmed up through the Tinker API until
 * everything that a run of these sizes needs is compiled, and stopped with all its children. Database, checkpoints and log lie in a new
 * folder, since the server becomes slower as its database grows. The server asks for no key and listens on this machine only.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, open, readdir, readFile } from 'node:fs/promises';
import { type AddressInfo, createServer } from 'node:net';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { TrainyardError } from '../../../core/errors.ts';
import type { AdamSettings, Loss } from '../../../core/policy.ts';
import type { Sample } from '../../../core/types.ts';
import { importanceSampling } from '../../../training/losses.ts';
import { TinkerConnection } from '../client/connection.ts';
import { TinkerEngine } from '../client/tinker-engine.ts';
import { sizesOf } from '../client/tinker-policy.ts';
import { TinkerTrainer } from '../client/tinker-trainer.ts';
import { cacheFolder, preparePython, SERVER } from './python.ts';

interface SkyrlSettings {
  /** A folder with config.json, tokenizer and safetensors. */
  readonly model: string;
  readonly python?: string | undefined;
  readonly cpu: boolean;
  readonly port: number;
  /** Sequences sampled at once. */
  readonly sequences: number;
  /** Rows of a pass computed at once. */
  readonly rows: number;
  readonly loraRank: number;
  readonly context: number;
  readonly callTokens: number;
  /** A new folder. */
  readonly state: string;
}

/** Enough for a run, its reference, and the models of clients that were killed, which the server keeps for five minutes. One is the base. */
const ADAPTERS = 6;
const SHORTEST = 256;
const START_MS = 600_000;
const LOOK_AGAIN_MS = 250;
const GRACE_MS = 10_000;
const LOG_LINES = 12;
/** The server asks for none, and its clients want one. */
export const ANY_KEY = 'tml-local';

/** `ended` rejects if the server ends by itself; disposing of what this returns ends it. */
export async function startSkyrl(settings: SkyrlSettings, stop: AbortSignal, tell: (line: string) => void) {
  await checkServable(settings.model);
  const { python, skyrl } = await preparePython({ python: settings.python, cpu: settings.cpu, stop, tell });
  await mkdir(settings.state, { recursive: true });
  const logPath = join(settings.state, 'server.log');
  const port = settings.port || (await freePort());
  const baseURL = `http://127.0.0.1:${port}`;
  tell(`Starting SkyRL ${skyrl} on ${settings.cpu ? 'the processor' : 'the GPU'}; its log is ${logPath}.`);
  await using log = await open(logPath, 'w');
  const child = spawn(python, [SERVER, ...argumentsOf(settings, port)], {
    // A group of its own, so that its children end with it. It watches its standard input, which closes even if this process is killed.
    detached: true,
    stdio: ['pipe', log.fd, log.fd],
    env: { ...process.env, ...environmentOf(settings) },
  });
  const end = endOf(child);
  const ended = end.then(async (how): Promise<never> => {
    const lines = (await readFile(logPath, 'utf8').catch(() => '')).trimEnd().split('\n').slice(-LOG_LINES);
    throw new TrainyardError('ENGINE_FAILED', `SkyRL’s server ended (${how}); the end of ${logPath}:\n${lines.join('\n')}`);
  });
  ended.catch(() => undefined);
  const close = async () => {
    signalGroup(child, 'SIGTERM');
    const killer = setTimeout(() => signalGroup(child, 'SIGKILL'), GRACE_MS);
    await end.finally(() => clearTimeout(killer));
    signalGroup(child, 'SIGKILL');
  };
  try {
    await Promise.race([ended, untilHealthy(baseURL, stop)]);
    tell('Compiling what a run needs; the first time takes minutes, later starts find it in the cache.');
    await Promise.race([ended, warmUp(settings, baseURL, stop)]);
  } catch (thrown) {
    await close();
    throw stop.aborted ? new TrainyardError('CANCELLED', 'interrupted before the server was ready') : thrown;
  }
  return { baseURL, ended, [Symbol.asyncDispose]: close };
}

/** SkyRL reads Hugging Face folders only. Throws MODEL_INVALID. */
async function checkServable(model: string): Promise<void> {
  const names: readonly string[] = await readdir(model).catch(() => []);
  if (
    names.includes('config.json') &&
    names.some((name) => name.endsWith('.safetensors')) &&
    !names.includes('adapter_config.json')
  )
    return;
  const isAdapter = names.includes('adapter_config.json');
  const what = isAdapter ? 'an adapter' : names.length === 0 ? 'a file' : 'a folder without config.json and safetensors';
  throw new TrainyardError(
    'MODEL_INVALID',
    `SkyRL serves folders in Hugging Face layout with safetensors; ${model} is ${what}`,
    isAdapter
      ? `merge it into its base first: trainyard export ${model} --merged <dir>, then --model <dir>`
      : 'download the model’s own folder with trainyard model get Owner/Name, or convert a GGUF file with transformers',
  );
}

/** Ascending powers of two of the context. Sequences are padded to the next of them. */
function lengthsOf({ context }: SkyrlSettings): readonly number[] {
  const lengths = [context];
  while (lengths[0]! / 2 >= SHORTEST) lengths.unshift(Math.ceil(lengths[0]! / 2));
  return lengths;
}

function argumentsOf({ model, state, sequences, rows, loraRank }: SkyrlSettings, port: number): readonly string[] {
  const backend = {
    max_lora_adapters: ADAPTERS,
    max_lora_rank: loraRank,
    train_micro_batch_size: rows,
    sample_max_num_sequences: sequences,
  };
  const flags = {
    '--base-model': resolve(model),
    '--backend': 'jax',
    '--port': String(port),
    '--database-url': `sqlite:///${resolve(state, 'server.sqlite')}`,
    '--checkpoints-base': resolve(state, 'checkpoints'),
    '--backend-config': JSON.stringify(backend),
  };
  return Object.entries(flags).flat();
}

function environmentOf(settings: SkyrlSettings): NodeJS.ProcessEnv {
  const { sequences, rows, callTokens: call_tokens, loraRank: max_lora_rank, cpu } = settings;
  return {
    TRAINYARD_SHAPES: JSON.stringify({ lengths: lengthsOf(settings), sequences, rows, call_tokens, max_lora_rank }),
    JAX_COMPILATION_CACHE_DIR: process.env['JAX_COMPILATION_CACHE_DIR'] ?? join(cacheFolder(), 'jax'),
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS: '0.5',
    HF_HUB_OFFLINE: '1',
    // The width of lines in the log.
    COLUMNS: '200',
    ...(cpu && { JAX_PLATFORMS: 'cpu' }),
  };
}

const ADAM: AdamSettings = { learningRate: 0, beta1: 0.9, beta2: 0.95, epsilon: 1e-12, weightDecay: 0, maxGradNorm: 0 };

/** Everything a run does, once at each length: the server compiles a program when it first meets its shapes. */
async function warmUp(settings: SkyrlSettings, baseURL: string, stop: AbortSignal): Promise<void> {
  const { model, loraRank, callTokens, state } = settings;
  const { vocabSize } = await sizesOf(model);
  await using connection = await TinkerConnection.open({ baseURL, apiKey: ANY_KEY, signal: stop });
  const lengths = lengthsOf(settings);
  const contextLength = settings.context;
  const baseModel = resolve(model);
  const samplingSessionId = await connection.createSamplingSession({ baseModel });
  const engine = new TinkerEngine({ connection, vocabSize, contextLength, samplingSessionId, policyVersion: 0 });
  const onPublished = (id: string, version: number) => engine.serve(id, version);
  await using trainer = new TinkerTrainer({ connection, baseModel, loraRank, seed: 0, vocabSize, contextLength, onPublished });
  const loss: Loss = importanceSampling();
  for (const [i] of lengths.entries()) {
    const above = (lengths[i - 1] ?? 1) + 1;
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: Math.min(callTokens, contextLength - above) };
    await engine.sample({ promptIds: new Int32Array(above), sampling, stopIds: [], seed: 1 });
    await trainer.forwardBackward([rowOf(above + 1)], loss);
  }
  await trainer.optimStep(ADAM);
  await trainer.publish(1);
  const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 1 };
  await engine.sample({ promptIds: new Int32Array(2), sampling, stopIds: [], seed: 1 });
  await mkdir(join(state, 'warm-up'));
  await trainer.save(join(state, 'warm-up'));
  await trainer.forget(join(state, 'warm-up'));
}

function rowOf(length: number): Sample {
  return {
    temperature: 1,
    weight: 1,
    rolloutId: 'warm-up',
    groupId: 'warm-up',
    tokens: new Int32Array(length),
    versions: new Int32Array(length),
    mask: new Uint8Array(length).fill(1, -1),
    logprobs: new Float32Array(length).fill(-1, -1),
    advantages: new Float32Array(length),
  };
}

async function untilHealthy(baseURL: string, stop: AbortSignal): Promise<void> {
  const until = performance.now() + START_MS;
  while (performance.now() < until) {
    const reply = await fetch(`${baseURL}/api/v1/healthz`, { signal: stop }).catch(() => undefined);
    stop.throwIfAborted();
    if (reply?.ok) return;
    await sleep(LOOK_AGAIN_MS);
  }
  throw new TrainyardError('POLICY_UNREACHABLE', `SkyRL’s server did not answer within ${START_MS / 1000} s`);
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return port;
}

async function endOf(child: ChildProcess): Promise<string> {
  return await new Promise((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('exit', (code, signal) => resolve(signal ?? `exit status ${code}`));
  });
}

/** Also reaches children that outlived the server itself. */
function signalGroup({ pid }: ChildProcess, signal: NodeJS.Signals): void {
  try {
    if (pid !== undefined) process.kill(-pid, signal);
  } catch {
    // The group has ended.
  }
}
