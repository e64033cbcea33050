/** `trainyard doctor`, with servers of our own in the environment. */
import { expect, it, onTestFinished, vi } from 'vitest';
import { doctorCommand } from '../../src/cli/doctor.ts';
import { localServer } from '../fixtures/local-server.ts';

const KEY = 'sk-secret-4711';

it('says what it found, asks the servers of the environment, and never prints a key', async () => {
  await using server = await localServer(({ url, headers }, response) => {
    const isKnown = headers.authorization === `Bearer ${KEY}`;
    response.statusCode = url === '/v1/models' && !isKnown ? 401 : 200;
    response.end(JSON.stringify(isKnown ? { data: [{ id: 'a' }, { id: 'b' }] } : {}));
  });
  const { host } = new URL(server.origin);
  for (const [name, value] of Object.entries({
    ...{ TINKER_BASE_URL: `http://${host}`, OPENAI_BASE_URL: `http://${host}/v1`, OPENAI_API_KEY: KEY },
    ...{ ANTHROPIC_BASE_URL: 'http://127.0.0.1:9', ANTHROPIC_API_KEY: KEY },
  }))
    vi.stubEnv(name, value);
  const printed = vi.spyOn(console, 'log').mockImplementation(() => {});
  onTestFinished(() => {
    vi.restoreAllMocks();
    vi.unstubAllEnvs();
  });
  expect(await doctorCommand({ json: true })).toBe(0);
  const told = String(printed.mock.calls[0]);
  const { ok, findings } = JSON.parse(told) as { ok: boolean; findings: { name: string; level: string; found: string }[] };
  const found = Object.fromEntries(findings.map((one) => [one.name, `${one.level} ${one.found}`]));
  expect(ok).toBe(true);
  expect(found).toMatchObject({
    ...{ node: `ok ${process.versions.node}`, kernels: expect.stringMatching(/^ok (?:relaxed|plain) SIMD/) },
    ...{ tinker: `ok ${host} answers`, openai: `ok ${host} offers 2 models`, anthropic: 'note 127.0.0.1:9 cannot be reached' },
    '@opentelemetry/api': expect.stringMatching(/^ok 1\./),
  });
  expect(told).not.toContain(KEY);
  await doctorCommand({ json: false });
  expect(String(printed.mock.calls.at(-1))).toMatch(/\nTraining can run here\.$/);
});
