/**
 * An agent that is any program: started with what it needs to reach the policy, bounded in time and memory, and ended with everything it
 * started.
 *
 * Its working directory, home and temporary folder are its own, empty, and removed after it: by none of them does it find the answers in the
 * project, or what another rollout left. It has this user's rights all the same, and can read whatever it knows the path of.
 *
 * The program leads a `ProcessGroup`, and also dies with this process, however that ends: a shell, which turns into the program once it is
 * ready, leaves a watcher in the group that waits for our end of a pipe to close. Windows has no such watcher. Never rejects: whatever
 * happens is in the result.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import { checkedDeadline, OutputTail, type ProcessExit, ProcessGroup, removeFolder, temporaryFolder } from './limits.ts';

/** Characters kept of each stream, from its end. */
const MOST_OUTPUT = 65_536;

/**
 * `$$` stays the number of the first shell, which is the program's and the group's too. The watcher holds none of the program's
 * streams, and the program not the pipe.
 */
const WITH_WATCHER = '{ read -r _ <&3; kill -s KILL -- -$$; } </dev/null >/dev/null 2>&1 & exec "$@" 3<&-';

export interface AgentProcessOptions {
  readonly command: string;
  readonly args?: readonly string[];
  /** Absent: an empty folder. Stays as the program leaves it. */
  readonly cwd?: string;
  /** Added to what every program needs; see `reducedEnvironment`. */
  readonly env?: Readonly<Record<string, string>>;
  /** Names of variables that are passed on too, where they are set. `HOME` among them: the program has this user's home. */
  readonly inheritEnv?: readonly string[];
  readonly signal?: AbortSignal;
  readonly deadlineMs: number;
  /** Resident memory of the whole group. Absent: no limit but the system's. */
  readonly memoryMb?: number;
  /** For its standard input, which is empty otherwise. */
  readonly input?: string;
}

export type AgentProcessEnd =
  /** A command that is not there ends as 127, one that is no program as 126. */
  | { readonly kind: 'exited'; readonly code: number }
  /** By someone else than us. */
  | { readonly kind: 'killed'; readonly signal: NodeJS.Signals }
  | { readonly kind: 'deadline'; readonly deadlineMs: number }
  | { readonly kind: 'memory'; readonly residentMb: number; readonly limitMb: number }
  /** Its signal aborted. */
  | { readonly kind: 'cancelled' }
  /** The system gave no process. */
  | { readonly kind: 'unstartable'; readonly message: string };

export interface AgentProcessResult {
  readonly end: AgentProcessEnd;
  /** Each the last 64 Ki characters. */
  readonly stdout: string;
  readonly stderr: string;
}

export async function runAgentProcess(options: AgentProcessOptions): Promise<AgentProcessResult> {
  checkedDeadline(options.deadlineMs);
  checkInherited(options.inheritEnv ?? []);
  const unstarted = (end: AgentProcessEnd): AgentProcessResult => ({ end, stdout: '', stderr: '' });
  if (options.signal?.aborted) return unstarted({ kind: 'cancelled' });
  let folder: string | undefined;
  try {
    folder = temporaryFolder('trainyard-agent');
    return await runIn(folder, options);
  } catch (thrown) {
    return unstarted({ kind: 'unstartable', message: String(thrown) });
  } finally {
    if (folder !== undefined) await removeFolder(folder);
  }
}

/** Throws what `spawn` throws, and where `folder` takes no folders. */
async function runIn(folder: string, options: AgentProcessOptions): Promise<AgentProcessResult> {
  const { deadlineMs, memoryMb, signal, input = '' } = options;
  const group = start(options, folder);
  const { child } = group;
  const stdout = new OutputTail(child.stdout, MOST_OUTPUT);
  const stderr = new OutputTail(child.stderr, MOST_OUTPUT);
  // A program that never reads its input breaks the pipe; that is its own affair.
  child.stdin?.on('error', () => {}).end(input);
  group.killOn(signal, { kind: 'cancelled' });
  group.killAfter(deadlineMs, { kind: 'deadline', deadlineMs });
  group.killOver(memoryMb, (residentMb) => ({ kind: 'memory', residentMb, limitMb: memoryMb! }));
  const exit = await group.ended;
  for (const stream of child.stdio) stream?.destroy();
  const { cause } = group;
  return { end: cause ?? endOf(exit), stdout: stdout.text, stderr: stderr.text };
}

function endOf(exit: ProcessExit): AgentProcessEnd {
  if ('failure' in exit) return { kind: 'unstartable', message: exit.failure };
  return exit.signal === null ? { kind: 'exited', code: exit.code ?? 0 } : { kind: 'killed', signal: exit.signal };
}

function start({ command, args = [], cwd, env, inheritEnv }: AgentProcessOptions, folder: string): ProcessGroup<AgentProcessEnd> {
  const [work, home, tmp] = ['work', 'home', 'tmp'].map((name) => join(folder, name)) as [string, string, string];
  for (const own of [work, home, tmp]) mkdirSync(own);
  const options = { env: { ...environmentIn({ home, tmp }, inheritEnv), ...env }, cwd: cwd ?? work };
  if (process.platform === 'win32') return new ProcessGroup(command, args, { ...options, stdio: 'pipe' });
  // The last one is the pipe that tells the watcher of our death.
  const stdio = ['pipe', 'pipe', 'pipe', 'pipe'] as 'pipe'[];
  return new ProcessGroup('/bin/sh', ['-c', WITH_WATCHER, 'sh', command, ...args], { ...options, stdio });
}

// ── its environment ─────────────────────────────────────────────────────────────────────────────────────────────────────
// It holds what programs need to work at all, what the caller names, and nothing else: an agent's process has none of the keys that the run
// itself was started with, and its frameworks report to nobody.

/**
 * The variables by which stock clients find the policy: `new OpenAI()` and `new Anthropic()` without arguments, and most programs built on
 * them. They are one role's of one rollout, and worth nothing when it ends.
 */
export function agentEnvironment({
  baseURL,
  apiKey,
}: {
  readonly baseURL: string;
  readonly apiKey: string;
}): Readonly<Record<string, string>> {
  return {
    OPENAI_BASE_URL: baseURL,
    OPENAI_API_KEY: apiKey,
    // Its clients add /v1 by themselves.
    ANTHROPIC_BASE_URL: baseURL.replace(/\/v1$/, ''),
    ANTHROPIC_API_KEY: apiKey,
  };
}

/** Compared without case: Windows does not have any, and proxies are spelt both ways. */
const ALWAYS: readonly RegExp[] = [
  /^(PATH|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_\w+|NO_COLOR|FORCE_COLOR)$/i,
  /^(HTTP|HTTPS|ALL|NO)_PROXY$/i,
  /^SSL_CERT_(FILE|DIR)$/i,
  // By name: NODE_AUTH_TOKEN and its like are secrets.
  /^NODE_(OPTIONS|PATH|ENV|NO_WARNINGS|DEBUG|EXTRA_CA_CERTS|USE_SYSTEM_CA|USE_ENV_PROXY|ICU_DATA|COMPILE_CACHE|DISABLE_COMPILE_CACHE|V8_COVERAGE)$/i,
  /^(SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|PROGRAMDATA|PROGRAMFILES)$/i,
];

/** Where programs leave what the next one finds. */
const PLACES = /^(HOME|TMPDIR|TMP|TEMP|XDG_(CACHE|CONFIG|DATA|RUNTIME|STATE)_(HOME|DIR)|USERPROFILE|APPDATA|LOCALAPPDATA)$/i;

/** Frameworks and agents that report conversations or their use to their makers unless told not to. Who sets one, to whatever, is heeded. */
const QUIET: Readonly<Record<string, string>> = {
  OPENAI_AGENTS_DISABLE_TRACING: '1',
  MASTRA_TELEMETRY_DISABLED: '1',
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
};

/** These belong to the run itself, and are never passed on. */
const NEVER = /^(TINKER|TRAINYARD)_/i;

/** The gateway listens on this machine; a proxy could not reach it. */
const OWN_HOSTS = ['127.0.0.1', 'localhost', '::1'];

/** `names`: variables that are passed on too, where they are set. */
export function reducedEnvironment(names: readonly string[] = []): Record<string, string> {
  checkInherited(names);
  const passed = (name: string): boolean =>
    names.includes(name) || name in QUIET || [...ALWAYS, PLACES].some((pattern) => pattern.test(name));
  const kept = Object.entries(process.env).filter(([name, value]) => value !== undefined && passed(name));
  const environment: Record<string, string> = { ...QUIET, ...(Object.fromEntries(kept) as Record<string, string>) };
  const set = Object.keys(environment);
  if (!set.some((name) => /^(HTTP|HTTPS|ALL)_PROXY$/i.test(name))) return environment;
  const spellings = set.filter((name) => /^NO_PROXY$/i.test(name));
  for (const name of spellings.length > 0 ? spellings : ['NO_PROXY']) {
    environment[name] = [environment[name], ...OWN_HOSTS].filter(Boolean).join(',');
  }
  return environment;
}

/** The same with a home and a temporary folder of its own, but for what `names` asks for. */
export function environmentIn({ home, tmp }: { readonly home: string; readonly tmp: string }, names: readonly string[] = []) {
  const kept = Object.entries(reducedEnvironment(names)).filter(([name]) => names.includes(name) || !PLACES.test(name));
  const onWindows = process.platform === 'win32' ? { USERPROFILE: home, APPDATA: home, LOCALAPPDATA: home } : {};
  return { HOME: home, TMPDIR: tmp, TMP: tmp, TEMP: tmp, ...onWindows, ...Object.fromEntries(kept) };
}

/** For agents in this process. To be called before an entry is imported, so that what it switches on itself stays on. */
export function quietFrameworks(): void {
  const isDecided = process.env['OPENAI_AGENTS_DISABLE_TRACING'] !== undefined;
  for (const [name, value] of Object.entries(QUIET)) process.env[name] ??= value;
  if (isDecided) return;
  // OpenAI's SDK looks when it is loaded, which may be done. We do not load it ourselves: who has none needs none.
  const loaded = Reflect.get(globalThis, Symbol.for('openai.agents.core.traceProvider')) as
    | { setDisabled?(isDisabled: boolean): void }
    | undefined;
  loaded?.setDisabled?.(true);
}

/** Throws USAGE for a name that an agent may not have. */
function checkInherited(names: readonly string[]): void {
  const refused = names.filter((name) => NEVER.test(name));
  if (refused.length === 0) return;
  throw new TrainyardError('USAGE', `env: ${refused.join(', ')} cannot be passed on to an agent`, {
    hint: 'what begins with TINKER_ or TRAINYARD_ belongs to the run; give the agent a variable of its own',
  });
}
