/**
 * Runs any program as an agent, within a deadline and a memory limit, and kills it with everything it started. Rejects only with USAGE for
 * invalid options; anything else is in the result.
 *
 * Working directory, home and temporary folder are its own, empty, and removed afterwards: none leads to the project's answers or to other
 * rollouts' files. It still has this user's rights and can read any file whose path it knows. It dies with this process, however that ends
 * (not on Windows): the shell that execs it leaves a watcher in its `ProcessGroup`, which waits for our end of a pipe to close.
 */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { TrainyardError } from '../core/errors.ts';
import type { ByName } from '../core/types.ts';
import { checkedDeadline, OutputTail, type ProcessExit, ProcessGroup, removeFolder, temporaryFolder } from './limits.ts';

/** Characters kept from the end of each stream. */
const MOST_OUTPUT = 65_536;

/** `$$` is the pid of the shell, the program and the group. The watcher holds none of the program's streams, nor the program the pipe. */
const WITH_WATCHER = '{ read -r _ <&3; kill -s KILL -- -$$; } </dev/null >/dev/null 2>&1 & exec "$@" 3<&-';

export interface AgentProcessOptions {
  readonly command: string;
  readonly args?: readonly string[];
  /** Defaults to an empty temporary folder. A given folder is not cleaned up. */
  readonly cwd?: string | undefined;
  /** Added to `reducedEnvironment`. */
  readonly env?: ByName<string>;
  /** Variables to pass on if set, by name. With `HOME`, the program gets this user's home. */
  readonly inheritEnv?: readonly string[];
  readonly signal?: AbortSignal;
  readonly deadlineMs: number;
  /** Resident memory of the whole group. If absent, only the system's limit applies. */
  readonly memoryMb?: number | undefined;
  readonly input?: string;
}

export type AgentProcessEnd =
  /** 127 if the command does not exist, 126 if it is not executable. */
  | { readonly kind: 'exited'; readonly code: number }
  /** Not by this module. */
  | { readonly kind: 'killed'; readonly signal: NodeJS.Signals }
  | { readonly kind: 'deadline'; readonly deadlineMs: number }
  | { readonly kind: 'memory'; readonly residentMb: number; readonly limitMb: number }
  | { readonly kind: 'cancelled' }
  | { readonly kind: 'unstartable'; readonly message: string };

export interface AgentProcessResult {
  readonly end: AgentProcessEnd;
  /** The last 64 Ki characters of each stream. */
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

async function runIn(folder: string, options: AgentProcessOptions): Promise<AgentProcessResult> {
  const { deadlineMs, memoryMb, signal, input = '' } = options;
  const group = start(options, folder);
  const { child } = group;
  const stdout = new OutputTail(child.stdout, MOST_OUTPUT);
  const stderr = new OutputTail(child.stderr, MOST_OUTPUT);
  // EPIPE from a program that does not read its input is not an error.
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
  // The last pipe tells the watcher of our death.
  const stdio = ['pipe', 'pipe', 'pipe', 'pipe'] as 'pipe'[];
  return new ProcessGroup('/bin/sh', ['-c', WITH_WATCHER, 'sh', command, ...args], { ...options, stdio });
}

// Environment: what programs need to work, what the caller names, and nothing else. So agents get none of the run's keys, and no telemetry.

/** The variables in which stock clients (`new OpenAI()`, `new Anthropic()`) find the policy. Valid for one role, until its rollout ends. */
export function agentEnvironment({ baseURL, apiKey }: { readonly baseURL: string; readonly apiKey: string }): ByName<string> {
  return {
    OPENAI_BASE_URL: baseURL,
    OPENAI_API_KEY: apiKey,
    // Anthropic's clients add /v1 themselves.
    ANTHROPIC_BASE_URL: baseURL.replace(/\/v1$/, ''),
    ANTHROPIC_API_KEY: apiKey,
  };
}

/** Case-insensitive: Windows ignores case, and proxy variables exist in both spellings. */
const ALWAYS: readonly RegExp[] = [
  /^(PATH|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_\w+|NO_COLOR|FORCE_COLOR)$/i,
  /^(HTTP|HTTPS|ALL|NO)_PROXY$/i,
  /^SSL_CERT_(FILE|DIR)$/i,
  // Listed by name, because NODE_AUTH_TOKEN and others are secrets.
  /^NODE_(OPTIONS|PATH|ENV|NO_WARNINGS|DEBUG|EXTRA_CA_CERTS|USE_SYSTEM_CA|USE_ENV_PROXY|ICU_DATA|COMPILE_CACHE|DISABLE_COMPILE_CACHE|V8_COVERAGE)$/i,
  /^(SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|PROGRAMDATA|PROGRAMFILES)$/i,
];

/** Places where a program could leave data for the next one. */
const PLACES = /^(HOME|TMPDIR|TMP|TEMP|XDG_(CACHE|CONFIG|DATA|RUNTIME|STATE)_(HOME|DIR)|USERPROFILE|APPDATA|LOCALAPPDATA)$/i;

/**
 * Turns off telemetry of frameworks and agents that report conversations or usage to their vendors, and what else they ask the internet.
 * Each name was looked up in its package. Values set by the user win.
 */
const QUIET: ByName<string> = {
  AGNO_TELEMETRY: 'false',
  AIDER_ANALYTICS: 'false',
  AIDER_CHECK_UPDATE: 'false',
  // A line about billing in its instructions, which differs between conversations.
  CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
  CREWAI_DISABLE_TELEMETRY: 'true',
  HAYSTACK_TELEMETRY_ENABLED: 'false',
  KILO_TELEMETRY_LEVEL: 'off',
  LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  MASTRA_TELEMETRY_DISABLED: '1',
  OPENAI_AGENTS_DISABLE_TRACING: '1',
};

/** Belongs to the run; never passed on. */
const NEVER = /^(TINKER|TRAINYARD)_/i;

/** The gateway listens on this machine, where a proxy cannot reach it. */
const OWN_HOSTS = ['127.0.0.1', 'localhost', '::1'];

export function reducedEnvironment(names: readonly string[] = []): Record<string, string> {
  checkInherited(names);
  const passed = (name: string) =>
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

/** `reducedEnvironment` with its own home and temporary folder, except for variables in `names`. */
export function environmentIn({ home, tmp }: { readonly home: string; readonly tmp: string }, names: readonly string[] = []) {
  const kept = Object.entries(reducedEnvironment(names)).filter(([name]) => names.includes(name) || !PLACES.test(name));
  const onWindows = process.platform === 'win32' ? { USERPROFILE: home, APPDATA: home, LOCALAPPDATA: home } : {};
  return { HOME: home, TMPDIR: tmp, TMP: tmp, TEMP: tmp, ...onWindows, ...Object.fromEntries(kept) };
}

/** For in-process agents. Call it before importing an entry, so that tracing which the entry switches on stays on. */
export function quietFrameworks(): void {
  const isDecided = process.env['OPENAI_AGENTS_DISABLE_TRACING'] !== undefined;
  for (const [name, value] of Object.entries(QUIET)) process.env[name] ??= value;
  if (isDecided) return;
  // OpenAI's SDK reads the variable on load, so an already loaded copy must be told. We do not load it ourselves.
  const loaded = Reflect.get(globalThis, Symbol.for('openai.agents.core.traceProvider')) as
    | { setDisabled?(isDisabled: boolean): void }
    | undefined;
  loaded?.setDisabled?.(true);
}

function checkInherited(names: readonly string[]): void {
  const refused = names.filter((name) => NEVER.test(name));
  if (refused.length === 0) return;
  throw new TrainyardError(
    'USAGE',
    `env: ${refused.join(', ')} cannot be passed on to an agent`,
    'what begins with TINKER_ or TRAINYARD_ belongs to the run; give the agent a variable of its own',
  );
}
