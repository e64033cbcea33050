/**
 * Continuous batching in one worker: requests join and leave between decode passes. Each pass takes one row of every running sequence, then
 * as many prompt rows as fit. A request's tokens depend only on its prompt, settings, seed and the served weights; passes, slots and prefix
 * reuse never show in a result. A request keeps the weights it began with, whatever is served meanwhile. A request that gets a non-finite
 * log-probability fails alone, and that token is neither returned nor streamed.
 */
import { ConstrainedTokens } from '../../core/json-machine.ts';
import type { SampleRequest, SampleResult } from '../../core/policy.ts';
import type { SamplingSettings } from '../../core/types.ts';
import type { DecodePass, Draw } from './decode-pass.ts';
import { type RandomStream, randomStream } from './random.ts';
import { type Placement, type Slot, SlotTable, type SlotTableOptions } from './slots.ts';
import type { CallError, StreamedTokens } from './worker-messages.ts';

interface DrawnFor {
  readonly sequence: Running;
  readonly token: number;
  readonly logprob: number;
}

interface Waiting {
  readonly id: number;
  readonly request: SampleRequest;
  readonly stream: boolean;
  readonly prompt: number[];
}

/** A version, and the area that holds its weights. */
interface Served {
  readonly version: number;
  readonly area: number;
}

interface Running extends Omit<Waiting, 'prompt'> {
  readonly served: Served;
  readonly slot: Slot;
  readonly promptLength: number;
  /** Prompt and sampled tokens; the slot's own array. */
  readonly tokens: number[];
  readonly logprobs: number[];
  /** Length of `tokens` at which the sequence must end. */
  readonly limit: number;
  readonly random: RandomStream;
  readonly constraint: ConstrainedTokens | undefined;
}

interface SampleLoopOptions {
  readonly pass: DecodePass;
  readonly cache: SlotTableOptions;
  readonly contextLength: number;
  readonly done: (id: number, result: SampleResult) => void;
  readonly failed: (id: number, error: CallError) => void;
  /** Called once per pass in which a streaming sequence got a token, before `done` is called for those that ended. */
  readonly drew: (streamed: StreamedTokens) => void;
}

export class SampleLoop {
  readonly #options: SampleLoopOptions;
  readonly #slots: SlotTable;
  #waiting: Waiting[] = [];
  #running: Running[] = [];
  #draining: { readonly area: number; readonly drained: () => void } | undefined;
  #admitting = false;
  #served: Served = { version: 0, area: 0 };
  #scheduled = false;

  constructor(options: SampleLoopOptions) {
    this.#options = options;
    this.#slots = new SlotTable(options.cache);
  }

  submit(id: number, request: SampleRequest, stream: boolean): void {
    this.#waiting.push({ id, request, stream, prompt: Array.from(request.promptIds) });
    this.#schedule();
  }

  /** Drops a request without a response. Ignores unknown ids: those requests have already ended. */
  cancel(id: number): void {
    this.#waiting = this.#waiting.filter((request) => request.id !== id);
    const running = this.#running.find((sequence) => sequence.id === id);
    if (running !== undefined) this.#leave(running);
    this.#schedule();
  }

  /** Calls back when no running request reads this area. Until `serve`, none is admitted if it is the one being served. */
  drain(drained: () => void, area = 0): void {
    if (area === this.#served.area) this.#admitting = false;
    this.#draining = { area, drained };
    this.#schedule();
  }

  /** Admits requests under the weights of this area, served as this version; running ones go on with theirs. */
  serve(version: number, area = 0): void {
    this.#slots.forget();
    this.#served = { version, area };
    this.#admitting = true;
    this.#schedule();
  }

  /** Goes through the event loop, so that messages are handled between passes: a cancellation takes effect at the next pass. */
  #schedule(): void {
    if (this.#scheduled) return;
    this.#scheduled = true;
    setImmediate(() => {
      this.#scheduled = false;
      this.#tick();
    });
  }

  #tick(): void {
    if (this.#admitting) this.#admit();
    const byArea = Map.groupBy(this.#running, ({ served }) => served.area);
    if (this.#draining !== undefined && !byArea.has(this.#draining.area)) {
      this.#draining.drained();
      this.#draining = undefined;
    }
    for (const [area, running] of byArea) this.#decode(area, running);
    if (byArea.size > 0) this.#schedule();
  }

  #admit(): void {
    const stay: Waiting[] = [];
    let full = false;
    for (const request of this.#waiting) {
      const limit = this.#limitOf(request);
      const placement: Placement = full ? { kind: 'full' } : this.#slots.place(request.prompt, limit);
      full = placement.kind === 'full';
      if (placement.kind !== 'take') {
        stay.push(request);
        continue;
      }
      const { slot, copy } = placement;
      const { pass } = this.#options;
      if (copy !== undefined) pass.copyPage(copy.from, copy.to, copy.count);
      pass.setPages(slot.index, slot.pages);
      this.#running.push(this.#start(request, slot, limit));
    }
    this.#waiting = stay;
  }

  #limitOf({ request, prompt }: Waiting): number {
    return Math.min(prompt.length + request.sampling.maxTokens, this.#options.contextLength);
  }

  #start({ id, request, stream, prompt }: Waiting, slot: Slot, limit: number): Running {
    return {
      id,
      request,
      stream,
      served: this.#served,
      slot,
      promptLength: prompt.length,
      tokens: prompt,
      logprobs: [],
      limit,
      random: randomStream(request.seed),
      constraint: request.constraint && new ConstrainedTokens(request.constraint, request.stopIds),
    };
  }

  #decode(area: number, running: readonly Running[]): void {
    const { pass } = this.#options;
    const drawing: Running[] = [];
    pass.begin(area);
    // Single steps before prompts, so that running sequences never wait for a long prefill.
    const inOrder = running.toSorted((a, b) => pendingRows(a) - pendingRows(b));
    for (const sequence of inOrder) {
      const { slot, tokens } = sequence;
      const end = Math.min(tokens.length, slot.cached + pass.room);
      for (let position = slot.cached; position < end; position++) {
        pass.add(tokens[position]!, position, slot.index, position === tokens.length - 1);
      }
      slot.cached = end;
      if (end === tokens.length) drawing.push(sequence);
    }
    pass.run();
    if (drawing.length > 0) this.#draw(drawing);
  }

  /** Row i of the logits belongs to `drawing[i]`. */
  #draw(drawing: readonly Running[]): void {
    const draws: Draw[] = drawing.map(({ request, random }) => ({
      temperature: request.sampling.temperature,
      uniform: random.uniform(),
    }));
    const truncated = drawing.map(({ request }, i) =>
      isTruncated(request) ? drawTruncated(this.#options.pass.logits(i), request.sampling, draws[i]!.uniform) : undefined,
    );
    const drawn = this.#options.pass.draw(draws);
    const all = drawing.map((sequence, i): DrawnFor => {
      const first = truncated[i] ?? { token: drawn.tokens[i]!, logprob: drawn.logprobs[i]! };
      const isRefused = sequence.constraint?.allows(first.token) === false && Number.isFinite(first.logprob);
      return { sequence, ...(isRefused ? redraw(sequence, this.#options.pass.logits(i), first) : first) };
    });
    const sound = all.filter(({ logprob }) => Number.isFinite(logprob));
    for (const one of all) if (!Number.isFinite(one.logprob)) this.#fail(one);
    this.#stream(sound.filter(({ sequence }) => sequence.stream));
    for (const one of sound) this.#extend(one);
  }

  #fail({ sequence, token, logprob }: DrawnFor): void {
    const { version } = sequence.served;
    this.#leave(sequence);
    if (token === NONE) {
      this.#options.failed(sequence.id, {
        code: 'REQUEST_INVALID',
        message: 'no token of the vocabulary leads to JSON of the schema',
        hint: 'the schema allows nothing here; change it, or leave the choice of the tool to the policy: "auto"',
      });
      return;
    }
    this.#options.failed(sequence.id, {
      code: 'ENGINE_FAILED',
      message: `version ${version} gave a token the log-probability ${logprob}, expected a finite number`,
      hint:
        version === 0
          ? 'the model’s own weights give numbers too large for float32: use another copy of the model, or another model'
          : 'the served weights overflow: publish those of a checkpoint from before, and lower the learning rate',
    });
  }

  #stream(streaming: readonly DrawnFor[]): void {
    if (streaming.length === 0) return;
    this.#options.drew({
      ids: streaming.map(({ sequence }) => sequence.id),
      versions: streaming.map(({ sequence }) => sequence.served.version),
      tokens: Int32Array.from(streaming, ({ token }) => token),
      logprobs: Float32Array.from(streaming, ({ logprob }) => logprob),
    });
  }

  #extend({ sequence, token, logprob }: DrawnFor): void {
    const { id, request, served, tokens, logprobs, promptLength, limit, constraint } = sequence;
    constraint?.take(token);
    tokens.push(token);
    logprobs.push(logprob);
    const stopped = request.stopIds.includes(token);
    if (!stopped && tokens.length < limit) return;
    this.#leave(sequence);
    this.#options.done(id, {
      ids: Int32Array.from(tokens.slice(promptLength)),
      logprobs: Float32Array.from(logprobs),
      stopReason: stopped ? 'stop' : 'length',
      policyVersion: served.version,
    });
  }

  #leave(sequence: Running): void {
    this.#slots.release(sequence.slot);
    this.#running = this.#running.filter((other) => other !== sequence);
  }
}

function pendingRows({ tokens, slot }: Running): number {
  return tokens.length - slot.cached;
}

function isTruncated({ sampling }: SampleRequest): boolean {
  return sampling.temperature > 0 && (sampling.topK > 0 || sampling.topP < 1);
}

/** In the place of a token where none is allowed. */
const NONE = -1;

/**
 * Draws among the tokens that the constraint allows. Together with the first draw, which it refused, this samples the policy's distribution
 * restricted to those tokens. The log-probability is still that of the whole distribution.
 */
function redraw({ request, random, constraint }: Running, logits: Float32Array, first: DrawnToken): DrawnToken {
  const allowed = logits.map((z, id) => (constraint!.allows(id) ? z : Number.NEGATIVE_INFINITY));
  if (allowed.every((z) => z === Number.NEGATIVE_INFINITY)) return { token: NONE, logprob: Number.NaN };
  const { temperature, topK, topP } = request.sampling;
  const settings = temperature === 0 ? { temperature: 1, topK: 1, topP: 1 } : { temperature, topK, topP };
  const { token } = drawTruncated(allowed, settings, random.uniform());
  return { token, logprob: first.logprob + (logits[token]! - logits[first.token]!) / settings.temperature };
}

// Drawing a token under top-k and top-p: the slow, exact path. The kernels do plain temperature sampling. Top-k first, then top-p over the
// rest, renormalised; among equals the lower id ranks first. The log-probability is that of the distribution actually drawn from.

/** `temperature` must be above 0. */
type Truncation = Pick<SamplingSettings, 'temperature' | 'topK' | 'topP'>;

interface DrawnToken {
  readonly token: number;
  readonly logprob: number;
}

/** `uniform` is in [0, 1). */
export function drawTruncated(logits: Float32Array, { temperature, topK, topP }: Truncation, uniform: number): DrawnToken {
  const top = logits.reduce((best, z) => Math.max(best, z), Number.NEGATIVE_INFINITY);
  const weights = Float64Array.from(logits, (z) => Math.exp((z - top) / temperature));
  const ids = Array.from(weights.keys());
  const ranked = topK > 0 || topP < 1 ? ids.sort((a, b) => logits[b]! - logits[a]! || a - b) : ids;
  const byCount = topK > 0 ? ranked.slice(0, topK) : ranked;
  const kept = nucleus(byCount, weights, topP);
  const total = sumOf(kept, weights);

  let left = uniform * total;
  // Rounding may leave a remainder; even then, a token with zero weight cannot be drawn.
  let token = kept.findLast((id) => weights[id]! > 0) ?? kept.at(-1)!;
  for (const id of kept) {
    left -= weights[id]!;
    if (left < 0) {
      token = id;
      break;
    }
  }
  return { token, logprob: Math.log(weights[token]! / total) };
}

/** The shortest run of the likeliest ids whose share reaches `topP`; at least one. */
function nucleus(ranked: readonly number[], weights: Float64Array, topP: number): readonly number[] {
  if (topP >= 1) return ranked;
  const wanted = topP * sumOf(ranked, weights);
  let reached = 0;
  let count = 0;
  while (count < ranked.length && (count === 0 || reached < wanted)) {
    reached += weights[ranked[count]!]!;
    count++;
  }
  return ranked.slice(0, count);
}

function sumOf(ids: readonly number[], weights: Float64Array): number {
  return ids.reduce((sum, id) => sum + weights[id]!, 0);
}
