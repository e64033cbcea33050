/**
 * Serves the policy through the gateway without a run: any agent can use it, and its turns are captured as in training. One rollout is open
 * from the start; more are opened over HTTP. Each is stored, ungraded, when its session is sealed; until then its turns are in a journal,
 * and a server that starts again in the same directory goes on with it. Flows use the agent-flow protocol, and
 * their trajectories keep the rewards that the flow or a grader gives.
 */
import { join } from 'node:path';
import { type CloseStack, Mutex, openingWith, orAborted } from '../core/async.ts';
import type { GraderRunner, SessionObserver, Store } from '../core/contracts.ts';
import { defineWorkflow } from '../core/define.ts';
import { TrainyardError } from '../core/errors.ts';
import type { Warn } from '../core/events.ts';
import { defined } from '../core/json.ts';
import { tellingIgnored } from '../core/turns.ts';
import type { RolloutIdentity, Task, Turn } from '../core/types.ts';
import { withModelPath } from '../engines/model-path.ts';
import { checkModelNamed, openSampled, type PolicyJudgeParts, withPolicy } from '../engines/open-policy.ts';
import { Gateway, type GatewayOptions, listen } from '../gateway/gateway.ts';
import { LiveSession } from '../gateway/sessions.ts';
import type { Failure } from '../http/refusal.ts';
import { inspectEntry, together } from '../rollout/discovery.ts';
import { outcomeByCalls, settle } from '../rollout/record.ts';
import { lockFolder } from '../run/directory.ts';
import { openGrader } from '../run/parts.ts';
import { openServedStore } from '../run/run-store.ts';
import { evaluationSettings, type RunSettings } from '../settings/check-settings.ts';
import { EVAL_DEFAULTS } from '../settings/setting-rows.ts';
import { isApi } from '../settings/settings.ts';
import { checkStoreUrl } from '../store/url.ts';
import { readTasks } from '../tasks/tasks.ts';
import { type OpenRollout, OpenRollouts } from './open-rollouts.ts';

export interface ServeSettings extends Partial<Pick<RunSettings, 'baseModel' | 'baseURL' | 'apiKeyEnv' | 'context'>> {
  readonly engine: RunSettings['engine'];
  /** Default: the base policy. */
  readonly model: string | undefined;
  readonly host: string;
  readonly port: number;
  /** Grants admin rights. Required to bind anything but loopback. */
  readonly token: string | undefined;
  readonly run: string;
  /** Database to keep rollouts in, instead of a file there. */
  readonly store?: string;
  /** Default: 1, or behind an API what agents ask for. */
  readonly temperature: number | undefined;
  readonly threads: number;
  readonly seed: number;
  /** Module whose grader scores agent-flow trajectories, and the tasks with their answers. */
  readonly entry: string | undefined;
  readonly tasks: string | undefined;
  /** Trajectories of a group that must end before it is handed out. */
  readonly group: number;
  /** Groups that may wait to be fetched. Undefined: unlimited. */
  readonly maxGroups: number | undefined;
  /** Seconds after which an incomplete group is handed out. Undefined: never. */
  readonly groupTimeout: number | undefined;
}

export interface Served extends AsyncDisposable {
  /** Refuses new work, with 503, until what is in flight has ended; open rollouts stay open on disk. False if the signal aborts first. */
  drain(signal: AbortSignal): Promise<boolean>;
  readonly origin: string;
  /** Open rollouts of an earlier server that go on. */
  readonly restored: number;
  /** For the rollout that is open from the start. */
  readonly baseURL: string;
  readonly apiKey: string;
  /** For opening, reading and sealing sessions. */
  readonly adminKey: string;
  /** For trusted code that uses the agent-flow protocol. Absent if the policy is behind an API. */
  readonly flowKey?: string;
  /** The policy, for people. */
  readonly name: string;
}

interface ServeObserver {
  readonly warn: Warn;
  onTurn(rolloutId: string, turn: Turn): void;
  onFailure(failure: Failure, path: string): void;
}

const LIMITS = { turns: 100_000, tokens: 100_000_000, deadlineMs: 24 * 3_600_000 } as const;
const FIRST: RolloutIdentity = { rolloutId: 'local', groupId: 'local', taskId: 'local', purpose: 'train' };

/** Serves until disposed, which seals and stores open sessions, unless they were drained. */
export function serve(settings: ServeSettings, { onTurn, onFailure, warn }: ServeObserver): Promise<Served> {
  return openingWith(async (opened) => {
    const {
      engine,
      model,
      baseModel,
      apiKeyEnv,
      baseURL: server,
      temperature,
      threads,
      seed,
      context,
      entry = 'serve',
    } = settings;
    const given = defined({ engine, model, baseModel, apiKeyEnv, temperature, baseURL: server, threads, seed, context });
    checkStoreUrl(settings.store);
    await checkModelNamed(given);
    if (isApi(engine) && (settings.entry ?? settings.tasks) !== undefined) throw noFlows(engine);
    // Of these, only what concerns the policy is used.
    const policy = evaluationSettings({ ...(await withModelPath(given)), entry });
    const stop = new AbortController();
    opened.defer(() => stop.abort());
    const { name, sampled } = opened.use(await openSampled(policy, { warn, stop: stop.signal, use: 'sampling' }));
    opened.use(await lockFolder(settings.run));
    const store = opened.use(await openServedStore(settings.run, settings.store));
    const journal = await OpenRollouts.open(join(settings.run, 'open'), name);
    const keeper = keeperIn(store, journal);
    opened.defer(async () => void (await keeper.kept()));
    const tellIgnored = tellingIgnored(warn);
    const recorded = ({ rolloutId }: RolloutIdentity, turn: Turn): void => {
      onTurn(rolloutId, turn);
      tellIgnored({ rolloutId, turns: [turn] });
    };
    const observer = { recorded, sealed: keeper.keep };
    const maxTokens = 'engine' in sampled ? sampled.engine.contextLength : LIMITS.tokens;
    const sampling = { temperature: temperature ?? 1, topP: 1, topK: 0, maxTokens };
    const sessionDefaults = { sampling, limits: LIMITS, seed: settings.seed, observer };
    const gateway = new Gateway({ ...sampled, modelName: 'policy', sessionDefaults, onFailure, journal });
    // What an earlier server left open stays open if this one cannot start.
    let isLeaving = true;
    opened.defer(() => isLeaving || gateway.sealAll());
    const signal = new AbortController().signal;
    const { pool, flows } =
      'engine' in sampled ? await openFlows(gateway, store, settings, { sessionDefaults, journal }, opened) : {};
    opened.defer(() => (isLeaving ? undefined : flows?.drain()));
    const restored = await reopen(journal, store, ({ identity, roles, remote, said, ...state }) => {
      if (said.length > 0 && flows !== undefined) return flows.reopen(identity.rolloutId, said, state).session;
      return gateway.reopen({ ...sessionDefaults, identity, roles, signal }, remote, state);
    });
    const { host, port, token } = settings;
    const listener = opened.use(await listen(gateway, { host, port, ...(token === undefined ? {} : { token }) }));
    // Disposed before the listener, so that clients waiting for a batch get what there is, or learn that none will come.
    opened.defer(async () => pool?.close());
    const drain = async (signal: AbortSignal): Promise<boolean> => {
      isLeaving = true;
      gateway.stopAdmitting();
      pool?.close();
      return await orAborted(listener.idle(), signal).then(
        () => true,
        () => false,
      );
    };
    const { origin } = listener;
    const known = gateway.session(FIRST.rolloutId);
    const session = known ?? gateway.open({ ...sessionDefaults, identity: FIRST, roles: {}, signal });
    if (known === undefined) await journal.opened(session);
    isLeaving = false;
    const { baseURL, apiKey } = session.model();
    return {
      origin,
      baseURL,
      apiKey,
      name,
      restored,
      adminKey: gateway.key('admin'),
      ...(pool && { flowKey: gateway.key('flow') }),
      drain,
      [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
    };
  });
}

function noFlows(engine: string): TrainyardError {
  return new TrainyardError(
    'USAGE',
    `--entry and --tasks grade agent flows, which need tokens; ${engine} gives none`,
    'leave them out, or measure with trainyard eval',
  );
}

/** The agent-flow protocol, which needs the policy's tokens. */
async function openFlows(
  gateway: Gateway,
  store: Store,
  settings: ServeSettings,
  { sessionDefaults, journal }: Pick<Required<GatewayOptions>, 'sessionDefaults'> & { readonly journal: OpenRollouts },
  opened: CloseStack,
) {
  const grading = await openGrading(settings, { sessions: gateway, seed: settings.seed, signal: new AbortController().signal });
  if (grading !== undefined) opened.use(grading);
  const { group, maxGroups, groupTimeout } = settings;
  const groupTimeoutMs = groupTimeout === undefined ? undefined : groupTimeout * 1000;
  const { GroupPool } = await import('../shapes/flows/group-pool.ts');
  const pool = await GroupPool.open({ store, clock: { now: Date.now }, group, maxGroups, groupTimeoutMs });
  const { mountAgentFlow } = await import('../shapes/flows/flow-routes.ts');
  const flows = mountAgentFlow(gateway, {
    sessionDefaults,
    journal,
    keep: (trajectory) => pool.keep(trajectory),
    pool,
    grader: grading?.grader,
    taskOf: ({ taskId, promptUid }) => grading?.tasks.get(taskId ?? promptUid),
  });
  return { pool, flows };
}

const UNGRADED = { kind: 'ungraded', why: 'nothing grades what is served' } as const;

/** Stores sessions as they are sealed. `kept` waits for all of them and throws if one could not be stored. */
function keeperIn(
  store: Store,
  journal: OpenRollouts,
): { readonly keep: NonNullable<SessionObserver['sealed']>; kept(): Promise<unknown> } {
  const keeping = new Set<Promise<void>>();
  const naming = new Mutex();
  const awaited = (kept: Promise<void>): Promise<void> => {
    keeping.add(kept);
    kept.then(
      () => keeping.delete(kept),
      () => undefined,
    );
    return kept;
  };
  return {
    keep: (identity, session) => {
      const { turns, unanswered } = session;
      const number = session instanceof LiveSession ? session.number : -1;
      if (turns.length === 0 && unanswered.length === 0) return awaited(journal.remove(number));
      const endedAt = Date.now();
      const startedAt = turns[0]?.startedAt ?? endedAt;
      const ended = { outcome: outcomeByCalls(session), turns, unanswered, result: {}, artifactsDir: null, startedAt, endedAt };
      // One at a time, so that two sessions with the same name do not both find it free.
      const append = async (): Promise<void> => {
        const rolloutId = await freeName(store, identity.rolloutId);
        await journal.ended(number, rolloutId);
        const trajectory = await settle({ ...identity, rolloutId }, ended, async () => UNGRADED);
        await store.append(trajectory);
        await journal.remove(number);
      };
      return awaited(naming.run(append));
    },
    kept: () => Promise.all(keeping),
  };
}

/**
 * Goes on with what an earlier server left open, and stores what had ended, and what another policy sampled: two in one rollout would pass as
 * one. Returns the number of those that go on.
 */
async function reopen(journal: OpenRollouts, store: Store, reopenOne: (one: OpenRollout) => LiveSession): Promise<number> {
  let goingOn = 0;
  const left = await journal.restore();
  const lastOf = new Map(left.map(({ identity, number }) => [identity.rolloutId, number]));
  for (const one of left) {
    const { policy, ended, said, number, identity } = one;
    // If another session had its name after it, it had been sealed, and was not stored yet.
    const isOver = lastOf.get(identity.rolloutId) !== number;
    // A flow's trajectory has one name, everywhere.
    const stored = said.length > 0 ? identity.rolloutId : ended;
    if (stored !== undefined && (await store.read(stored)) !== undefined) await journal.remove(number);
    else {
      const session = reopenOne(one);
      if (ended === undefined && policy === journal.policy && !isOver) goingOn++;
      else session.seal();
      await session.kept;
    }
  }
  return goingOn;
}

/** An earlier session may have had the same name. */
async function freeName(store: Store, rolloutId: string): Promise<string> {
  let name = rolloutId;
  for (let number = 2; (await store.read(name)) !== undefined; number++) name = `${rolloutId}-${number}`;
  return name;
}

/** The entry's grader, and the tasks whose answers it sees. */
interface Grading extends AsyncDisposable {
  readonly grader: GraderRunner;
  readonly tasks: ReadonlyMap<string, Task>;
}

/** `policy`: for graders that ask it. Undefined if neither entry nor tasks are given. Throws USAGE if only one is. */
async function openGrading({ entry, tasks }: ServeSettings, policy: PolicyJudgeParts): Promise<Grading | undefined> {
  if (entry === undefined && tasks === undefined) return undefined;
  if (entry === undefined || tasks === undefined) {
    const found = entry === undefined ? '--tasks without --entry' : '--entry without --tasks';
    const hint = 'a grader needs both: what to say, and the answers to say it by';
    throw new TrainyardError('USAGE', `found ${found}`, hint);
  }
  // Only the grader is needed; the agent is external.
  const inspected = await inspectEntry(entry, () => defineWorkflow(async () => {}));
  const { grader, graderModule } = inspected.entry ?? {};
  if (inspected.problems.length > 0) throw together(inspected.problems);
  if (grader === undefined) {
    throw new TrainyardError('GRADER_NOT_FOUND', `${entry} exports no grader`, 'export const grader = defineGrader(…)');
  }
  const known = new Map((await readTasks(tasks)).map((task) => [task.id, task]));
  const runner = withPolicy(await openGrader(EVAL_DEFAULTS, grader, graderModule, policy.signal), grader, policy);
  return { grader: runner, tasks: known, [Symbol.asyncDispose]: () => runner[Symbol.asyncDispose]() };
}
