/**
 * A Tinker API server on the embedded policy, with one base model and any number of sessions. Samples never come from the weights in
 * training, only from weights saved for sampling. Saved weights outlive the process; everything else ends with it. `serveTinker` locks the
 * folder of saved weights for this process and listens.
 */
import { randomBytes } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { openingWith, yieldToEventLoop } from '../../../core/async.ts';
import type { Clock } from '../../../core/contracts.ts';
import { TrainyardError } from '../../../core/errors.ts';
import { bearerOf, isSameSecret } from '../../../http/guard.ts';
import { KeyedServer, type Listener, serve } from '../../../http/http-server.ts';
import { decoded, type HttpReply, type HttpRequest, jsonReply, Router, routeFor } from '../../../http/message.ts';
import { lockFolder } from '../../../run/directory.ts';
import { checkModelFolder } from '../../checkpoint.ts';
import { resolveModel } from '../../model-path.ts';
import { TINKER_LIMITS, WAITS, type Waits } from './limits.ts';
import { Futures, failureIn, futureRoutes, type Route, type TinkerFailure } from './requests.ts';
import { SamplerPool, samplingRoutes } from './sampling-routes.ts';
import { notOffered, Sessions, trainingRoutes } from './training.ts';
import { type BaseModel, openBaseModel, WeightsFolder, weightsRoutes } from './weights.ts';

type OnFailure = (failure: TinkerFailure, path: string) => void;

interface TinkerServerOptions {
  readonly model: string;
  /** Folder for saved weights. It must exist, and no other process may use it. */
  readonly state: string;
  readonly key: string;
  readonly threads?: number | undefined;
  readonly waits?: Partial<Waits> | undefined;
  readonly clock?: Clock | undefined;
  readonly onFailure?: OnFailure | undefined;
}

const ROOT = '/api/v1';
const OPEN = `${ROOT}/healthz`;
const SWEEP_MS = 10_000;
/** Milliseconds. `request` allows for a large batch over a slow line. */
const TIMEOUTS = { request: 120_000, keepAlive: 75_000 };
/** Unlike the wall clock, stops while the machine sleeps and never jumps: clients that slept too are not gone. */
const ELAPSED: Clock = { now: () => performance.now() };

export class TinkerServer extends KeyedServer<TinkerFailure> implements AsyncDisposable {
  readonly #base: BaseModel;
  readonly #sessions: Sessions;
  readonly #samplers: SamplerPool;
  readonly #router: Router<{ readonly method: string; readonly path: string; readonly route: Route }>;
  readonly #key: string;
  readonly #sweep: NodeJS.Timeout;

  private constructor(base: BaseModel, weights: WeightsFolder, { key, onFailure, clock, waits: given }: TinkerServerOptions) {
    super({ clock, onFailure });
    const waits = { ...WAITS, ...given };
    const sessions = new Sessions(clock ?? ELAPSED, waits);
    const futures = new Futures({ bytes: TINKER_LIMITS.resultBytes, ageMs: waits.result });
    const samplers = new SamplerPool({ turnMs: waits.turn, isSilent: (id) => sessions.isSilent(id), open: base.open });
    const parts = { base, sessions, futures, weights, gapMs: waits.gap };
    const routes = {
      ...trainingRoutes(parts),
      ...samplingRoutes(parts, samplers),
      ...futureRoutes(futures, (id) => sessions.touch(id), waits.poll),
      ...weightsRoutes(weights),
    };
    const table = Object.entries(routes).map(([key, route]) => {
      const [method = '', path = ''] = key.split(' ');
      return { method, path: ROOT + path, route };
    });
    this.#base = base;
    this.#sessions = sessions;
    this.#samplers = samplers;
    this.#router = new Router(table);
    this.#key = key;
    this.#sweep = setInterval(() => this.endIdle(), SWEEP_MS).unref();
  }

  static async open(options: TinkerServerOptions): Promise<TinkerServer> {
    const base = await openBaseModel(options.model, options.threads);
    return new TinkerServer(base, await WeightsFolder.open(options.state, base), options);
  }

  get modelName(): string {
    return this.#base.name;
  }

  /** Binds only to loopback unless `chosenKey` is given. */
  listen(options: { readonly host: string; readonly port: number; readonly chosenKey?: string | undefined }): Promise<Listener> {
    const { host, port, chosenKey } = options;
    return serve(this, { host, port, secret: { name: 'key', value: chosenKey }, timeouts: TIMEOUTS });
  }

  protected async route(request: HttpRequest): Promise<HttpReply> {
    await yieldToEventLoop();
    const { path } = request;
    if (path !== OPEN) this.#checkKey(request);
    const match = this.#router.match(path);
    const route = match === undefined ? notOffered(this.#sessions) : routeFor(match, request.method, path).route;
    const names = Object.fromEntries(Object.entries(match?.segments ?? {}).map(([name, part]) => [name, decoded(part)]));
    return await route({ ...request, names });
  }

  /** Ends sessions that stayed silent too long, and resumes samples of sessions that have come back. */
  endIdle(): void {
    this.#sessions.endIdle();
    this.#samplers.beginWaiting();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#sweep);
    await Promise.all([...this.#sessions.models.values()].map((model) => model.close('the server stops')));
    await this.#samplers[Symbol.asyncDispose]();
  }

  protected readonly failureOf = failureIn;

  protected replyTo({ status, code, message, headers }: TinkerFailure): HttpReply {
    // Clients of FastAPI servers read `detail`.
    return jsonReply(status, { error: { code, message }, detail: message }, headers);
  }

  #checkKey(request: HttpRequest): void {
    const given = request.header('x-api-key') ?? bearerOf(request);
    if (isSameSecret(this.#key, given)) return;
    throw new TrainyardError(
      'SESSION_UNKNOWN',
      given === undefined ? 'there is no X-API-Key' : 'the X-API-Key is wrong',
      'set TINKER_API_KEY to the key the server was started with',
    );
  }
}

interface TinkerServerSettings {
  readonly model: string;
  readonly host: string;
  readonly port: number;
  /** Default: the key kept in the state folder, so a restart keeps it. Required to bind anything but loopback. */
  readonly apiKey: string | undefined;
  readonly state: string;
  readonly threads: number;
}

/** Official clients reject keys without this prefix. */
const KEY_PREFIX = 'tml-';
const KEPT_KEY = /^tml-[0-9a-f]{32}$/;

/** Serves until disposed. `baseModel` is the name by which clients address the model. */
export function serveTinker(settings: TinkerServerSettings, onFailure: OnFailure) {
  return openingWith(async (opened) => {
    const { host, port, apiKey: chosenKey, threads } = settings;
    if (chosenKey !== undefined && !chosenKey.startsWith(KEY_PREFIX)) {
      throw new TrainyardError('USAGE', `the key does not begin with ${KEY_PREFIX}`, `clients want keys such as ${newKey()}`);
    }
    const model = await resolveModel(settings.model);
    await checkModelFolder(model);
    opened.use(await lockFolder(settings.state, '--state'));
    const state = resolve(settings.state);
    const key = chosenKey ?? (await keyOf(state));
    const server = opened.use(await TinkerServer.open({ model, state, key, threads, onFailure }));
    const { origin } = opened.use(await server.listen({ host, port, chosenKey }));
    return { origin, apiKey: key, baseModel: server.modelName, [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose]() };
  });
}

async function keyOf(state: string): Promise<string> {
  const path = join(state, 'api-key');
  const kept = await readFile(path, 'utf8').catch(() => undefined);
  if (kept !== undefined && KEPT_KEY.test(kept.trim())) return kept.trim();
  const key = newKey();
  await writeFile(path, `${key}\n`, { mode: 0o600 });
  return key;
}

const newKey = () => `${KEY_PREFIX}${randomBytes(16).toString('hex')}`;
