/**
 * Where the computing of training and decoding goes, kernel by kernel, on one thread: `node --import <this file> <this file> <folder>`, as
 * `llm.ts` runs it. Writes the model of random weights into the folder first. The preload replaces `WebAssembly.Instance` in the worker; it
 * relies only on the exports that begin with `gemm` taking M, N, K first. Last line: the share of matrix products in training and decoding.
 */
import { BroadcastChannel, isMainThread } from 'node:worker_threads';
import type { Took } from './llm.ts';

interface KernelTime {
  /** Of computing, so that other work on the machine hardly shows. */
  seconds: number;
  calls: number;
  /** Of matrix products; otherwise 0. */
  flops: number;
}
type Times = Map<string, KernelTime>;
type Kernel = (...given: number[]) => number;

const channel = new BroadcastChannel('kernel-times');

function timed(name: string, kernel: Kernel, times: Times): Kernel {
  const isProduct = name.startsWith('gemm') && kernel.length > 3;
  return (...given) => {
    const start = process.threadCpuUsage();
    const result = kernel(...given);
    const { user, system } = process.threadCpuUsage(start);
    const [M, N, K] = isProduct ? (given as [number, number, number]) : [0, 0, 0];
    const key = isProduct ? `${name} ${M}×${N}×${K}` : name;
    const { seconds, calls, flops } = times.get(key) ?? { seconds: 0, calls: 0, flops: 0 };
    times.set(key, { seconds: seconds + (user + system) / 1e6, calls: calls + 1, flops: flops + 2 * M * N * K });
    return result;
  };
}

function timeKernels(): void {
  const times: Times = new Map();
  const Instance = WebAssembly.Instance;
  class TimedInstance {
    readonly exports;
    constructor(...given: ConstructorParameters<typeof Instance>) {
      const exports = Object.entries(new Instance(...given).exports as Record<string, Kernel>);
      this.exports = Object.fromEntries(exports.map(([name, kernel]) => [name, timed(name, kernel, times)]));
    }
  }
  Object.defineProperty(WebAssembly, 'Instance', { value: TimedInstance });
  channel.onmessage = () => {
    channel.postMessage(times);
    times.clear();
  };
  channel.unref();
}

/** What the worker counted since the last time. */
function kernelTimes(): Promise<Times> {
  const answer = new Promise<Times>((resolve) => {
    channel.onmessage = ({ data }) => resolve(data as Times);
  });
  channel.postMessage('report');
  return answer;
}

async function measure(name: string, tokens: number, work: () => Promise<Took>) {
  await kernelTimes();
  const { cpuSeconds } = await work();
  const times = [...(await kernelTimes())].toSorted(([, a], [, b]) => b.seconds - a.seconds);
  const products = times.reduce((sum, [, { seconds, flops }]) => sum + (flops > 0 ? seconds : 0), 0);
  const percent = (seconds: number) => `${((100 * seconds) / cpuSeconds).toFixed(1).padStart(5)} %`;
  console.log(
    `${name}, one thread: ${Math.round(tokens / cpuSeconds)} tokens per CPU second, in matrix products ${percent(products)}`,
  );
  let rest = cpuSeconds;
  for (const [kernel, { seconds, calls, flops }] of times.filter(([, time]) => time.seconds > 0.004 * cpuSeconds)) {
    rest -= seconds;
    const speed = flops > 0 ? `${(flops / seconds / 1e9).toFixed(0).padStart(4)} GFLOP/s` : '';
    console.log(`${percent(seconds)}  ${kernel.padEnd(36)}${`${calls}`.padStart(6)} calls ${speed}`);
  }
  console.log(`${percent(rest)}  the rest: smaller kernels, and all that is not a kernel\n`);
  return { cpuSeconds, products };
}

async function main(folder: string): Promise<void> {
  const { generate, NEW, openModel, PROMPT, SEQUENCES, sequences, train, writeModel } = await import('./llm.ts');
  await writeModel(folder);
  await using model = await openModel(folder, 1);
  await train(model, sequences(2, PROMPT + NEW));
  await model.publish(1);
  const half = SEQUENCES / 2;
  const training = await measure('training', half * (PROMPT + NEW), () => train(model, sequences(half, PROMPT + NEW)));
  const decoding = await measure('decoding', SEQUENCES * NEW, () => generate(model, sequences(SEQUENCES, PROMPT), NEW));
  console.log((training.products + decoding.products) / (training.cpuSeconds + decoding.cpuSeconds));
  channel.close();
}

if (isMainThread) await main(process.argv[2]!);
else timeKernels();
