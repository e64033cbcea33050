/** How long a session of a Tinker server lives. */
import { expect, it, vi } from 'vitest';
import { TinkerServer } from '../../src/tinker/server/server.ts';
import { KEY, scratch } from '../fixtures/tinker/server.ts';

it('a session does not end because the machine’s clock was set', async () => {
  const home = await scratch();
  const clock = vi.spyOn(Date, 'now');
  try {
    await using server = await TinkerServer.open({ model: home.model, state: home.state, key: KEY, threads: 1 });
    const ask = async (verb: string, body: object) =>
      server.answer({
        method: 'POST',
        path: `/api/v1/${verb}`,
        query: '',
        header: (name) => (name === 'x-api-key' ? KEY : undefined),
        body: async () => Buffer.from(JSON.stringify(body)),
        signal: new AbortController().signal,
        address: undefined,
      });
    const { session_id } = JSON.parse(String((await ask('create_session', {})).body));
    clock.mockReturnValue(Date.UTC(2100, 0));
    server.endIdle();
    expect(await ask('session_heartbeat', { session_id })).toMatchObject({ status: 200 });
  } finally {
    clock.mockRestore();
    await home.remove();
  }
});
