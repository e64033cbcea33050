/**
 * The models that are sampled from, a few, each holding one set of weights at a time, and the queue for them.
 *
 * A call is given the model that holds its weights; otherwise an idle one loads them, the one that was longest without a call;
 * otherwise another is opened; otherwise the call waits. Sessions take turns: one that queues thousands of calls holds up nobody
 * else's. Who is silent waits until heard of again, or is cancelled with its session.
 *
 * Weights are told apart by the id they were saved with, never by their name or place. An instance changes its weights only while
 * nobody uses it, so that a call sees one set of weights from its beginning to its end.
 */
import type { EmbeddedModel } from '../../nn/policy.ts';
import { ApiError } from './api-error.ts';

export interface Weights {
  readonly id: string;
  readonly folder: string;
  /** Throws unless these are still the weights in the folder. Asked before and after they are loaded. */
  check(): Promise<void>;
}

interface Instance {
  readonly opened: Promise<EmbeddedModel>;
  /** Settled when the weights of `holds` are served. */
  ready: Promise<EmbeddedModel>;
  holds: string | undefined;
  /** When it was given them, by `performance.now()`. */
  since: number;
  calls: number;
  lastUsed: number;
  loads: number;
}

export interface SamplerPoolOptions {
  readonly most: number;
  /** Sequences under way from which on a session that has some waits. */
  readonly sequences: number;
  /** How long weights are sampled from, at least, before others that are waited for take their place. */
  readonly turnMs: number;
  isSilent(sessionId: string): boolean;
  /** Opens a model with the base weights. */
  open(): Promise<EmbeddedModel>;
}

export interface SamplerCall {
  readonly weights: Weights;
  /** Empty for calls outside of any session. */
  readonly sessionId: string;
  readonly sequences: number;
  readonly signal: AbortSignal;
}

/** What one session wants of one set of weights, in the order it was asked for. */
interface Line {
  readonly sessionId: string;
  readonly weights: Weights;
  /** With what begins each of them. */
  readonly waiting: Map<SamplerCall, (instance: Instance) => void>;
}

export class SamplerPool implements AsyncDisposable {
  readonly #options: SamplerPoolOptions;
  /** Those that hold their weights longest come first. */
  #instances: Instance[] = [];
  /** The session whose turn it is comes first. */
  #lines: Line[] = [];
  readonly #underway = new Set<SamplerCall>();
  #uses = 0;

  constructor(options: SamplerPoolOptions) {
    this.#options = options;
  }

  /** Runs `work` on a model that serves these weights, and these only, until it is done. */
  async use<T>(call: SamplerCall, work: (model: EmbeddedModel) => Promise<T>): Promise<T> {
    const instance = await this.#turnOf(call);
    try {
      return await work(await instance.ready);
    } finally {
      instance.calls--;
      this.#underway.delete(call);
      this.beginWaiting();
    }
  }

  /** Whatever can begin, begins. To be called too when sessions may have been heard of again. */
  beginWaiting(): void {
    while (this.#beginNext());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#lines = [];
    await Promise.all(this.#instances.splice(0).map(async ({ opened }) => (await opened.catch(() => undefined))?.close()));
  }

  #turnOf(call: SamplerCall): Promise<Instance> {
    const { weights, sessionId, signal } = call;
    const { promise, resolve, reject } = Promise.withResolvers<Instance>();
    const known = this.#lines.find((one) => one.sessionId === sessionId && one.weights.id === weights.id);
    const line: Line = known ?? { sessionId, weights, waiting: new Map() };
    if (known === undefined) this.#lines.push(line);
    line.waiting.set(call, resolve);
    const cancel = (): void => {
      line.waiting.delete(call);
      reject(new ApiError('invalid_request', 'the request was cancelled'));
    };
    signal.addEventListener('abort', cancel, { once: true });
    if (signal.aborted) cancel();
    this.beginWaiting();
    return promise;
  }

  #beginNext(): boolean {
    this.#lines = this.#lines.filter(({ waiting }) => waiting.size > 0);
    for (const line of this.#lines) {
      const [call, begin] = line.waiting.entries().next().value!;
      const instance = this.#mayBegin(line.sessionId) ? this.#find(line.weights) : undefined;
      if (instance === undefined) continue;
      line.waiting.delete(call);
      this.#underway.add(call);
      instance.calls++;
      instance.lastUsed = ++this.#uses;
      const rank = (one: Line): number => Number(one.sessionId === line.sessionId) + Number(one === line);
      this.#lines.sort((a, b) => rank(a) - rank(b));
      begin(instance);
      return true;
    }
    return false;
  }

  /** One that has nothing under way need not wait for others' calls to end. */
  #mayBegin(sessionId: string): boolean {
    if (this.#options.isSilent(sessionId)) return false;
    const underway = [...this.#underway];
    if (!underway.some((call) => call.sessionId === sessionId)) return true;
    return underway.reduce((sum, { sequences }) => sum + sequences, 0) < this.#options.sequences;
  }

  /** Nothing is awaited between looking and taking. */
  #find(weights: Weights): Instance | undefined {
    const holder = this.#holderOf(weights);
    if (holder !== undefined) return this.#givesWay(holder) ? undefined : holder;
    const idle = this.#instances.filter(({ calls }) => calls === 0).toSorted((a, b) => a.lastUsed - b.lastUsed)[0];
    if (idle !== undefined) return this.#load(idle, weights);
    return this.#instances.length < this.#options.most ? this.#load(this.#open(), weights) : undefined;
  }

  #holderOf({ id }: Weights): Instance | undefined {
    return this.#instances.find(({ holds }) => holds === id);
  }

  /** Otherwise calls for the weights that are there could keep all others waiting for ever. */
  #givesWay(instance: Instance): boolean {
    if (instance !== this.#instances[0] || performance.now() - instance.since < this.#options.turnMs) return false;
    return this.#lines.some(({ weights, sessionId }) => !this.#holderOf(weights) && !this.#options.isSilent(sessionId));
  }

  #open(): Instance {
    const opened = this.#options.open();
    const instance: Instance = { opened, ready: opened, holds: undefined, since: 0, calls: 0, lastUsed: 0, loads: 0 };
    this.#instances.push(instance);
    return instance;
  }

  #load(instance: Instance, weights: Weights): Instance {
    instance.holds = weights.id;
    instance.since = performance.now();
    this.#instances = [...this.#instances.filter((one) => one !== instance), instance];
    instance.ready = instance.opened.then(async (model) => {
      await weights.check();
      await model.load(weights.folder, { optimizer: false });
      await weights.check();
      await model.publish(++instance.loads);
      return model;
    });
    // What it holds now is not known: nobody may find it.
    instance.ready.catch(() => this.#drop(instance));
    return instance;
  }

  #drop(instance: Instance): void {
    const place = this.#instances.indexOf(instance);
    if (place >= 0) this.#instances.splice(place, 1);
    void instance.opened.then(
      (model) => model.close(),
      () => undefined,
    );
    this.beginWaiting();
  }
}
