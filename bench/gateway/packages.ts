/**
 * The packages that only this benchmark needs, in a folder of their own: Portkey's gateway, and undici as its own package (the one
 * inside Node has no pool to ask). Installed when first needed.
 *
 * Types are the few that are used, since the folder may be empty when the project is type-checked.
 */
import { execFileSync } from 'node:child_process';
import { existsSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath } from 'node:url';

const FOLDER = fileURLToPath(new URL('../packages/', import.meta.url));
export const PORTKEY = `${FOLDER}node_modules/@portkey-ai/gateway/build/start-server.js`;

export interface PoolRequest {
  readonly path: string;
  readonly method: 'POST';
  readonly headers: Readonly<Record<string, string>>;
  readonly body: string;
  readonly signal?: AbortSignal | undefined;
}

export interface PoolResponse {
  readonly statusCode: number;
  readonly body: NodeJS.ReadableStream & { text(): Promise<string> };
}

export interface Pool {
  request(options: PoolRequest): Promise<PoolResponse>;
}

export function createPool(origin: string, connections: number): Pool {
  const undici = createRequire(`${FOLDER}package.json`)('undici') as {
    Pool: new (origin: string, options: object) => Pool;
  };
  return new undici.Pool(origin, { connections, headersTimeout: 120_000, bodyTimeout: 120_000 });
}

export function installPackages(): void {
  const installed = `${FOLDER}node_modules/.package-lock.json`;
  if (existsSync(installed) && statSync(installed).mtimeMs >= statSync(`${FOLDER}package-lock.json`).mtimeMs) return;
  console.log('installing bench/packages');
  const flags = ['ci', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error'];
  execFileSync('npm', flags, { cwd: FOLDER, stdio: 'inherit' });
}
