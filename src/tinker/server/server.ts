/**
 * A server of the Tinker API on the embedded policy, as a function from request to reply. The socket is the listener's.
 *
 * It has one base model, any number of sessions, a few models in training and a few to sample from. Samples never come from the weights
 * that are being trained, only from what was saved for sampling. What is saved outlives the process, everything else ends with it.
 */
import { hash, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../../core/contracts.ts';
import { TrainyardError } from '../../core/errors.ts';
import { WrongKeys } from '../../http/guard.ts';
import { errorBody, type HttpFailure, httpFailureOf } from './api-error.ts';
import { openBaseModel } from './base-model.ts';
import { Futures } from './futures.ts';
import { TINKER_LIMITS, WAITS, type Waits } from './limits.ts';
import { jsonReply, type TinkerReply, type TinkerRequest } from './message.ts';
import { type Parts, RouteTable } from './routes.ts';
import { SamplerPool } from './sampler-pool.ts';
import { SAMPLING_ROUTES } from './sampling-routes.ts';
import { SESSION_ROUTES } from './session-routes.ts';
import { Sessions } from './sessions.ts';
import { NOT_OFFERED, TRAINING_ROUTES } from './training-routes.ts';
import { WeightsFolder } from './weights-folder.ts';
import { WEIGHTS_ROUTES } from './weights-routes.ts';

export interface TinkerServerOptions {
  /** Model folder of the base model. */
  readonly model: string;
  /** Where saved weights are kept: an existing folder that no other process uses. */
  readonly state: string;
  readonly key: string;
  readonly threads?: number | undefined;
  readonly waits?: Partial<Waits> | undefined;
  readonly clock?: Clock | undefined;
  /** Told of every request that was refused. */
  readonly onFailure?: ((failure: HttpFailure, path: string) => void) | undefined;
}

const ROUTES = new RouteTable(SESSION_ROUTES, TRAINING_ROUTES, SAMPLING_ROUTES, WEIGHTS_ROUTES);
const OPEN = '/api/v1/healthz';
const SWEEP_MS = 10_000;
/** Stands still while the machine sleeps, and does not jump when its clock is set: clients that slept too are not gone. */
const ELAPSED: Clock = { now: () => performance.now() };

export class TinkerServer implements AsyncDisposable {
  readonly #parts: Parts;
  readonly #key: Buffer;
  readonly #wrongKeys: WrongKeys;
  readonly #onFailure: (failure: HttpFailure, path: string) => void;
  readonly #sweep: NodeJS.Timeout;

  private constructor(parts: Parts, { key, onFailure = () => {} }: TinkerServerOptions) {
    this.#parts = parts;
    this.#key = digest(key);
    this.#wrongKeys = new WrongKeys(parts.clock);
    this.#onFailure = onFailure;
    this.#sweep = setInterval(() => this.endIdle(), SWEEP_MS).unref();
  }

  static async open(options: TinkerServerOptions): Promise<TinkerServer> {
    const { model, state, threads, clock = Date } = options;
    const waits = { ...WAITS, ...options.waits };
    const base = await openBaseModel(model, threads);
    const sessions = new Sessions(options.clock ?? ELAPSED, waits);
    const isSilent = (id: string): boolean => sessions.isSilent(id);
    const { samplers: most, sequences } = TINKER_LIMITS;
    const parts: Parts = {
      base,
      sessions,
      futures: new Futures({ bytes: TINKER_LIMITS.resultBytes, ageMs: waits.result }),
      samplers: new SamplerPool({ most, sequences, turnMs: waits.turn, isSilent, open: base.open }),
      weights: await WeightsFolder.open(state, base.folder, base.name),
      waits,
      clock,
      load: { bytes: 0, samples: 0 },
    };
    return new TinkerServer(parts, options);
  }

  get modelName(): string {
    return this.#parts.base.name;
  }

  /** Never throws. */
  async answer(request: TinkerRequest): Promise<TinkerReply> {
    const [path = '', query] = request.url.split('?', 2);
    try {
      if (path !== OPEN) this.#checkKey(request);
      const { route, names } = ROUTES.find(request.method, path) ?? { route: NOT_OFFERED, names: [] };
      return await route(this.#parts, { ...request, header: request.header, names, query: new URLSearchParams(query) });
    } catch (thrown) {
      return this.refuse(this.#wrongKeys.count(thrown, request.address), path);
    }
  }

  refuse(thrown: unknown, path: string): TinkerReply {
    const failure = httpFailureOf(thrown);
    this.#onFailure(failure, path);
    return jsonReply(errorBody(failure), failure.status);
  }

  /** Ends sessions that gave no sign of life; samples of those that were heard of again go on. */
  endIdle(): void {
    for (const model of this.#parts.sessions.endIdle()) void model.close('its session gave no sign of life');
    this.#parts.samplers.beginWaiting();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#sweep);
    await Promise.all(this.#parts.sessions.models.map((model) => model.close('the server stops')));
    await this.#parts.samplers[Symbol.asyncDispose]();
  }

  #checkKey({ header }: TinkerRequest): void {
    const given = header('x-api-key') ?? /^Bearer (.+)$/i.exec(header('authorization') ?? '')?.[1];
    if (given !== undefined && timingSafeEqual(digest(given), this.#key)) return;
    throw new TrainyardError('SESSION_UNKNOWN', given === undefined ? 'there is no X-API-Key' : 'the X-API-Key is wrong', {
      hint: 'set TINKER_API_KEY to the key the server was started with',
    });
  }
}

/** Of equal length whatever the key's, so that the comparison tells nothing. */
function digest(key: string): Buffer {
  return hash('sha256', key, 'buffer');
}
