/**
 * The environment of a process that runs an agent: what programs need to work at all, what its caller names, and nothing else. An
 * agent's process thereby holds none of the keys that the run itself was started with, and its frameworks report to nobody.
 *
 * Not a sandbox: a program of the same user can read that user's files and, on some systems, other processes' environments.
 */
import { TrainyardError } from '../core/errors.ts';

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

/** Of the run itself: never passed on, whoever asks. */
const NEVER = /^(TINKER|TRAINYARD)_/i;

/** The gateway listens on this machine; a proxy could not reach it. */
const OWN_HOSTS = ['127.0.0.1', 'localhost', '::1'];

/** `names`: variables that are passed on too, where they are set. */
export function reducedEnvironment(
  names: readonly string[] = [],
  whole: NodeJS.ProcessEnv = process.env,
): Record<string, string> {
  checkNames(names);
  const passed = (name: string): boolean =>
    names.includes(name) || name in QUIET || [...ALWAYS, PLACES].some((pattern) => pattern.test(name));
  const kept = Object.entries(whole).filter((entry): entry is [string, string] => entry[1] !== undefined && passed(entry[0]));
  return withoutProxyForOwnHosts({ ...QUIET, ...Object.fromEntries(kept) });
}

/** The same with a home and a temporary folder of its own, but for what `names` asks for. */
export function environmentIn(folders: { readonly home: string; readonly tmp: string }, names: readonly string[] = []) {
  const { home, tmp } = folders;
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
export function checkNames(names: readonly string[]): void {
  const refused = names.filter((name) => NEVER.test(name));
  if (refused.length === 0) return;
  throw new TrainyardError('USAGE', `env: ${refused.join(', ')} cannot be passed on to an agent`, {
    hint: 'what begins with TINKER_ or TRAINYARD_ belongs to the run; give the agent a variable of its own',
  });
}

function withoutProxyForOwnHosts(environment: Record<string, string>): Record<string, string> {
  const names = Object.keys(environment);
  if (!names.some((name) => /^(HTTP|HTTPS|ALL)_PROXY$/i.test(name))) return environment;
  const spellings = names.filter((name) => /^NO_PROXY$/i.test(name));
  for (const name of spellings.length > 0 ? spellings : ['NO_PROXY']) {
    environment[name] = [environment[name], ...OWN_HOSTS].filter(Boolean).join(',');
  }
  return environment;
}
