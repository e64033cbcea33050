/**
 * The environment of a process that runs an agent: what programs need to work at all, what its caller names, and nothing else. An
 * agent's process thereby holds none of the keys that the run itself was started with.
 *
 * Not a sandbox: a program of the same user can read that user's files and, on some systems, other processes' environments.
 */
import { TrainyardError } from '../core/errors.ts';

/** Compared without case: Windows does not have any, and proxies are spelt both ways. */
const ALWAYS: readonly RegExp[] = [
  /^(PATH|HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|TMP|TEMP|NO_COLOR|FORCE_COLOR)$/i,
  /^XDG_(CACHE|CONFIG|DATA|RUNTIME|STATE)_(HOME|DIR)$/i,
  /^(HTTP|HTTPS|ALL|NO)_PROXY$/i,
  /^SSL_CERT_(FILE|DIR)$/i,
  // By name: NODE_AUTH_TOKEN and its like are secrets.
  /^NODE_(OPTIONS|PATH|ENV|NO_WARNINGS|DEBUG|EXTRA_CA_CERTS|USE_SYSTEM_CA|USE_ENV_PROXY|ICU_DATA|COMPILE_CACHE|DISABLE_COMPILE_CACHE|V8_COVERAGE)$/i,
  /^(SYSTEMROOT|SYSTEMDRIVE|WINDIR|COMSPEC|PATHEXT|APPDATA|LOCALAPPDATA|USERPROFILE|PROGRAMDATA|PROGRAMFILES)$/i,
];

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
    names.includes(name) || (!NEVER.test(name) && ALWAYS.some((pattern) => pattern.test(name)));
  const kept = Object.entries(whole).filter((entry): entry is [string, string] => entry[1] !== undefined && passed(entry[0]));
  return withoutProxyForOwnHosts(Object.fromEntries(kept));
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
