/** The queue of rollouts in a real PostgreSQL, without processes. */
import { describe, expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { randomTrajectory } from '../../src/testing/trajectories.ts';
import { jobIdOf, type RolloutJob, WorkQueue } from '../../src/workers/queue.ts';
import { databaseFor, postgresMissing } from '../postgres/server.ts';

const RUN = 'run';
const SPEC = { release: '', entry: '', settings: {}, sources: {}, kernels: '' };

describe.skipIf(postgresMissing !== undefined)('the queue of rollouts', () => {
  it('gives no result of an older version of the policy for a rollout that is asked for again', async () => {
    await using database = await databaseFor();
    await using _ = await openStore(database.url, RUN);
    await using queue = await WorkQueue.create(database.url);
    await queue.openRun(RUN, SPEC);
    const trajectory = randomTrajectory(1);
    const { rolloutId, groupId, taskId, purpose } = trajectory;
    const sampling = { temperature: 1, topP: 1, topK: 0, maxTokens: 8 };
    const asked = (version: number): RolloutJob => ({
      identity: { rolloutId, groupId, taskId, purpose },
      task: { id: taskId, prompt: [] },
      ...{ sampling, version },
    });
    await queue.send(RUN, [asked(1)]);
    const [claimed] = await queue.claim(RUN, 8, 'worker');
    expect(await queue.finish(RUN, [{ ...claimed!, trajectory, files: [] }])).toEqual([]);
    await queue.send(RUN, [asked(1), asked(2)]);
    const [old, renewed] = [jobIdOf(RUN, asked(1)), jobIdOf(RUN, asked(2))];
    expect([...(await queue.results(RUN, [renewed])).keys()]).toEqual([]);
    expect([...(await queue.results(RUN, [old, renewed])).keys()]).toEqual([old]);
    expect((await queue.claim(RUN, 8, 'worker')).map(({ id }) => id)).toEqual([renewed]);
  });
});
