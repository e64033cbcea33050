/**
 * The files of deploy/ are checked without Docker: what they name exists, commands and flags are those of the program, and no password is in
 * them. Nobody has built the image or started the services from here.
 */
import { existsSync, globSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { buildProgram } from '../../src/cli/program.ts';
import { readText, repository } from '../house/sources.ts';

interface Service {
  readonly command?: readonly string[];
  readonly environment?: Readonly<Record<string, string | null>>;
  readonly secrets?: readonly string[];
  readonly volumes?: readonly string[];
  readonly stop_grace_period?: string;
  readonly build?: { readonly context: string; readonly dockerfile: string };
}
interface Compose {
  readonly services: Readonly<Record<'database' | 'coordinator' | 'worker', Service>>;
  readonly volumes: Readonly<Record<string, null>>;
  readonly secrets: Readonly<Record<string, { readonly file: string }>>;
}

const DOCKERFILE = 'deploy/Dockerfile';
const { services, volumes, secrets } = parse(readText('deploy/compose.yaml'), { merge: true }) as Compose;
const instructions = readText(DOCKERFILE)
  .replaceAll('\\\n', ' ')
  .split('\n')
  .map((line) => /^([A-Z]+) (.*)$/.exec(line))
  .flatMap((found) => (found === null ? [] : [{ name: found[1]!, rest: found[2]! }]));
const rests = (name: string): readonly string[] => instructions.flatMap((one) => (one.name === name ? [one.rest] : []));
/** What COPY takes from the repository. */
const copied = rests('COPY')
  .filter((rest) => !rest.includes('--from='))
  .flatMap((rest) =>
    rest
      .split(/\s+/)
      .filter((word) => !word.startsWith('--'))
      .slice(0, -1),
  );
const packageJson = JSON.parse(readText('package.json')) as {
  readonly files: readonly string[];
  readonly engines: { readonly node: string };
  readonly devDependencies: Readonly<Record<string, string>>;
};

async function parsed(words: readonly string[]): Promise<Readonly<Record<string, unknown>>> {
  const program = buildProgram();
  let options: Readonly<Record<string, unknown>> = {};
  for (const verb of program.commands) {
    verb.action(() => {
      options = verb.opts();
    });
  }
  await program.parseAsync([...words], { from: 'user' });
  return options;
}

describe('deploy/Dockerfile', () => {
  it('copies only what exists, and all that the package needs', () => {
    expect(copied.length).toBeGreaterThan(10);
    expect(copied.filter((path) => !existsSync(join(repository, path)))).toEqual([]);
    // What is built there need not be copied.
    const needed = packageJson.files.filter((path) => path !== 'dist');
    expect(needed.filter((path) => !copied.some((from) => path === from || path.startsWith(`${from}/`)))).toEqual([]);
  });

  it('is not kept from what it copies by .dockerignore', () => {
    const letIn = readText('.dockerignore')
      .split('\n')
      .flatMap((line) => (line.startsWith('!') ? [line.slice(1)] : []));
    const isLetIn = (path: string): boolean =>
      letIn.some((pattern) => path === pattern || globSync(pattern, { cwd: repository }).includes(path));
    expect(copied.filter((path) => !isLetIn(path))).toEqual([]);
  });

  it('has the Node that this repository is tested with, which the package accepts', () => {
    const majors = rests('FROM').map((rest) => Number(/^node:(\d+)-/.exec(rest)?.[1]));
    const [tested, least] = [packageJson.devDependencies['node'], packageJson.engines.node.replace('>=', '')].map((text) =>
      Number(text!.split('.')[0]),
    );
    expect(majors).toEqual([tested, tested]);
    expect(tested).toBeGreaterThanOrEqual(least!);
  });

  it('runs as a user without rights, and holds no secret', () => {
    expect(rests('USER')).toEqual(['node']);
    expect([...rests('ENV'), ...rests('ARG')].filter((rest) => /PASS|KEY|TOKEN|SECRET/i.test(rest))).toEqual([]);
    expect(copied.filter((path) => path.includes('secrets'))).toEqual([]);
    expect(readText('.gitignore').split('\n')).toContain('deploy/secrets/');
  });
});

describe('deploy/compose.yaml', () => {
  it('calls the program with a verb, arguments and flags that it has', async () => {
    const coordinator = await parsed(services.coordinator.command!);
    expect(coordinator).toMatchObject({ workers: 'external', store: 'postgres://trainyard@database/trainyard' });
    const worker = await parsed(services.worker.command!);
    expect(worker).toMatchObject({ store: 'postgres://trainyard_worker@database/trainyard', grace: 60 });
    expect(Number.parseInt(services.worker.stop_grace_period!, 10)).toBeGreaterThan(worker['grace'] as number);
    await expect(parsed([...services.worker.command!, '--no-such-flag'])).rejects.toThrow('unknown option');
  });

  it('gives each service the secrets that it names, workers only their own, and passwords in files', () => {
    for (const [name, { environment = {}, secrets: own = [] }] of Object.entries(services)) {
      const files = Object.entries(environment).filter(([key]) => key.endsWith('PASSWORD_FILE'));
      expect(
        files.map(([, path]) => path),
        name,
      ).toEqual(own.map((secret) => `/run/secrets/${secret}`));
      expect(
        own.filter((secret) => !Object.hasOwn(secrets, secret)),
        name,
      ).toEqual([]);
      const inline = Object.entries(environment).filter(
        ([key, value]) => /PASS|KEY/.test(key) && !key.endsWith('_FILE') && value !== null,
      );
      expect(inline, name).toEqual([]);
    }
    // A password of a superuser is the database's alone.
    expect(services.database.environment).not.toHaveProperty('POSTGRES_USER');
    expect(services.worker.secrets).toEqual(['worker']);
    expect(services.coordinator.secrets).toEqual(['database']);
  });

  it('mounts what exists, and builds from the Dockerfile', () => {
    for (const volume of Object.values(services).flatMap((service) => service.volumes ?? [])) {
      const from = volume.replace(/\$\{AGENT:-([^}]*)\}/, '$1').split(':')[0]!;
      if (/^[./]/.test(from)) expect(existsSync(resolve(repository, 'deploy', from)), volume).toBe(true);
      else expect(Object.keys(volumes)).toContain(from);
    }
    for (const { build } of [services.coordinator, services.worker]) {
      expect(join('deploy', build!.context, build!.dockerfile)).toBe(DOCKERFILE);
    }
  });

  it('mounts the agent where its commands look for it, on both sides alike', () => {
    const [coordinator, worker] = [services.coordinator, services.worker].map(({ command, volumes: own }) => [
      command![1],
      own![0],
    ]);
    expect(coordinator).toEqual(['agent/agent.ts', expect.stringMatching(/:\/app\/agent:ro$/)]);
    expect(worker).toEqual(coordinator);
    expect(rests('WORKDIR').at(-1)).toBe('/app');
  });

  it('gives the tasks to the coordinator, and to workers empty files in their places', () => {
    const empty = globSync('*.jsonl', { cwd: join(repository, 'examples/shop') }).map(
      (name) => `/dev/null:/app/agent/${name}:ro`,
    );
    expect(services.worker.volumes!.slice(1).toSorted()).toEqual(empty.toSorted());
    expect(services.coordinator.volumes!.filter((volume) => volume.startsWith('/dev/null'))).toEqual([]);
  });
});

it.each(['entrypoint.sh', 'roles.sh'])('deploy/%s can be executed', (name) => {
  expect(statSync(join(repository, 'deploy', name)).mode & 0o111).toBeGreaterThan(0);
  expect(readText(`deploy/${name}`)).toMatch(/^#!\/bin\/sh\n/);
});
