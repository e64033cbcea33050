/**
 * A worker thread of an embedded model: executes the main thread's calls on the shared memory, and samples between them. Weights, gradients
 * and caches are in the arena; the thread holds no model state. An error in a call rejects that call; an error in the sampling loop ends
 * the thread, which fails the whole model.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { messageOf, TrainyardError } from '../../core/errors.ts';
import { DecodePass, packAdapters, packServed } from './decode-pass.ts';
import { planLayout } from './model/config.ts';
import { SampleLoop } from './sample-loop.ts';
import { TrainPass } from './train-pass.ts';
import { loadKernels } from './wasm.ts';
import type { CallKind, Calls, FromWorker, ToWorker, WorkerSetup } from './worker-messages.ts';

const { index, memory, compiled, config, lora, arena } = workerData as WorkerSetup;
const port = parentPort!;
const layout = planLayout(config);
const kernels = loadKernels(compiled, memory);
const regions = arena.workers[index]!;
kernels.setGemmScratch(regions.gemmScratch);

const shared = { kernels, buffer: memory.buffer, config, layout, lora, arena };
const train = regions.train && new TrainPass({ ...shared, regions: regions.train });
const loop = new SampleLoop({
  pass: new DecodePass({ ...shared, regions: regions.decode }),
  cache: { slots: arena.slotCount, pages: arena.pageCount, page: arena.page },
  contextLength: config.contextLength,
  done: (id, result) => reply({ id, answer: result }),
  failed: (id, error) => reply({ id, error }),
  drew: reply,
});

function reply(message: FromWorker): void {
  port.postMessage(message);
}

function sumLanes({ spans, lanes }: Calls['sum-lanes']['ask']): number[] {
  return spans.map(({ first, end }) => kernels.sumLanes(arena.gradients, arena.flatLength, lanes, first, end));
}

function adam({ spans, lanes, step }: Calls['adam']['ask']): boolean {
  const { parameters, gradients, firstMoments, secondMoments } = arena;
  const { learningRate, beta1, beta2, epsilon, weightDecay, correction1, correction2, gradientScale } = step;
  let finite = true;
  for (const { first, end } of spans) {
    const flaws = kernels.adamW(
      ...([parameters, gradients, firstMoments, secondMoments, first, end] as const),
      ...([learningRate, beta1, beta2, epsilon, weightDecay, correction1, correction2, gradientScale] as const),
    );
    finite &&= flaws === 0;
    for (let lane = 0; lane < lanes; lane++) {
      kernels.fillZero(gradients + (lane * arena.flatLength + first) * 4, end - first);
    }
  }
  return finite;
}

/** What a call returns at once; `sample` and `drain` reply later, `cancel` never. */
function execute(message: ToWorker): { readonly answer: Calls[CallKind]['answer'] } | undefined {
  switch (message.kind) {
    case 'sample':
      loop.submit(message.id, message.request, message.stream);
      return undefined;
    case 'cancel':
      loop.cancel(message.id);
      return undefined;
    case 'drain':
      loop.drain(() => reply({ id: message.id, answer: undefined }), message.area);
      return undefined;
    case 'serve':
      loop.serve(message.version, message.area);
      return { answer: undefined };
    case 'pack':
      if (lora !== undefined) packAdapters({ kernels, config, arena, area: message.area }, lora);
      else if (train !== undefined) packServed({ kernels, config, arena, area: message.area }, layout);
      return { answer: undefined };
    case 'forward':
      return { answer: train!.forward(message.weights, message.batch) };
    case 'backward':
      train!.backward(message.lane, message.slopes);
      return { answer: undefined };
    case 'trunk':
      train!.computeTrunk(message.weights, message.tokens, message.lanes);
      return { answer: undefined };
    case 'trunk-backward':
      train!.backwardTrunk(message.weights, message.tokens, message.lanes);
      return { answer: undefined };
    case 'sum-lanes':
      return { answer: sumLanes(message) };
    case 'adam':
      return { answer: adam(message) };
  }
}

port.on('message', (message: ToWorker) => {
  try {
    const result = execute(message);
    if (result !== undefined) reply({ id: message.id, ...result });
  } catch (thrown) {
    const code = thrown instanceof TrainyardError ? thrown.code : undefined;
    reply({ id: message.id, error: { code, message: messageOf(thrown) } });
  }
});
