import { describe, expect, it } from 'vitest';
import { scriptedRollouts } from '../../../test/fixtures/scripted-rollouts.ts';
import type { EntryModule } from '../../core/contracts.ts';
import { asWorkflow } from '../../core/define.ts';
import type { TrainyardError } from '../../core/errors.ts';
import type { Trajectory } from '../../core/types.ts';
import type { EpisodeData } from './episode.ts';
import { type EpisodeSample, episodeSample, type ModelResponse } from './returned-samples.ts';
import { type EpisodeResult, type InferenceEngine, RolloutWorkflow } from './rollout-workflow.ts';

type Episode = (engine: InferenceEngine, data: EpisodeData) => Promise<unknown>;

const workflowOf = (episode: Episode): RolloutWorkflow =>
  new (class Own extends RolloutWorkflow {
    override async arunEpisode(engine: InferenceEngine, data: EpisodeData): Promise<EpisodeResult> {
      return (await episode(engine, data)) as EpisodeResult;
    }
  })();

async function rollout(episode: Episode, says?: () => string): Promise<Trajectory> {
  await using rollouts = await scriptedRollouts(workflowOf(episode), 7, undefined, says);
  return await rollouts.run();
}

const first = (engine: InferenceEngine, data: EpisodeData): Promise<ModelResponse> =>
  engine.agenerate({ inputIds: engine.applyChatTemplate(data.messages) });

describe('an episode', () => {
  it('asks for tokens and gets them as they are recorded, with log-probabilities and versions', async () => {
    let response: ModelResponse | undefined;
    const { turns, outcome, grade } = await rollout(async (engine, data) => {
      response = await engine.agenerate({ inputIds: engine.applyChatTemplate(data.messages), rid: 'mine' });
      expect(engine.decode(response.outputTokens)).toBe('answer 0');
      return episodeSample(response, 0.5);
    });
    expect({ outcome, grade }).toEqual({
      outcome: { kind: 'completed' },
      grade: { kind: 'graded', reward: { value: 0.5, source: 'workflow' } },
    });
    const [turn] = turns;
    expect(response).toMatchObject({
      rid: 'mine',
      text: 'answer 0',
      stopReason: 'stop',
      inputTokens: [...turn!.promptIds],
      outputTokens: [...turn!.sampledIds],
      outputLogprobs: [...turn!.logprobs],
      outputVersions: Array.from(turn!.sampledIds, () => 7),
    });
  });

  it('that returns null is rejected', async () => {
    const { outcome, grade } = await rollout((engine, data) => first(engine, data).then(() => null));
    expect(outcome).toEqual({ kind: 'rejected', reason: 'returned_none' });
    expect(grade.kind).toBe('ungraded');
  });

  it('that goes on from an answer is one row, and only what it masks is trained', async () => {
    const { turns, grade } = await rollout(async (engine, data) => {
      const one = await first(engine, data);
      const two = await engine.agenerate({ inputIds: engine.continueChat(one, [{ role: 'user', content: 'more' }]) });
      expect(two.inputTokens.slice(0, one.inputTokens.length + one.outputTokens.length)).toEqual([
        ...one.inputTokens,
        ...one.outputTokens,
      ]);
      return episodeSample(two, 2);
    });
    expect(turns.map(({ trainable, after }) => ({ trainable, after }))).toEqual([
      { trainable: false, after: undefined },
      { trainable: true, after: 0 },
    ]);
    expect(grade).toMatchObject({ reward: { value: 2 } });
  });

  it.each([undefined, () => 'the same'])(
    'may return several samples, each turn with its own reward, also where all say the same',
    async (says) => {
      const twice: Episode = async (engine, data) => [
        episodeSample(await first(engine, data), 1),
        episodeSample(await first(engine, data), 0),
      ];
      const { turns, grade, outcome } = await rollout(twice, says);
      expect(outcome).toEqual({ kind: 'completed' });
      expect(turns.map(({ trainable }) => trainable)).toEqual([true, true]);
      expect(grade).toMatchObject({ reward: { value: 0.5, byTurn: { 0: 1, 1: 0 } } });
    },
  );

  it('may be cut where another answer went on: the row is the longer one’s', async () => {
    const cut: Episode = async (engine, data) => {
      const inputIds = engine.applyChatTemplate(data.messages);
      const whole = await engine.agenerate({ inputIds });
      await engine.agenerate({ inputIds, gconfig: { maxNewTokens: 1 } });
      return episodeSample(whole, 1);
    };
    const { turns } = await rollout(cut, () => 'the same');
    expect(turns.map(({ trainable }) => trainable)).toEqual([true, false]);
  });

  it('may return interactions: what completions earned, by their ids', async () => {
    const { grade } = await rollout(async (engine, data) => {
      const one = await first(engine, data);
      const two = await engine.agenerate({ inputIds: engine.continueChat(one, [{ role: 'user', content: 'more' }]) });
      return { [one.id]: { reward: 1 }, [two.id]: { reward: 2 } };
    });
    expect(grade).toMatchObject({ reward: { value: 3, byTurn: { 0: 3, 1: 2 } } });
  });

  it('gets data of its own, without the answer', async () => {
    const seen: EpisodeData[] = [];
    const episode = workflowOf(async (engine, data) => {
      // @ts-expect-error: the answer is the grader's alone
      expect(() => data.answer).toThrow(/data has no answer: a workflow never sees it; an AsyncRewardWrapper gives/);
      seen.push(structuredClone(data));
      const sample = episodeSample(await first(engine, data), 1);
      data.messages.push({ role: 'user', content: 'changed' });
      (data.metadata as { list: number[] }).list.push(9);
      return sample;
    });
    await using rollouts = await scriptedRollouts(episode);
    const task = { id: 'x', answer: 'secret', metadata: { list: [1] } };
    await Promise.all([rollouts.run(task), rollouts.run(task), rollouts.run(task)]);
    const expected = { id: 'x', messages: [{ role: 'user', content: 'hello' }], metadata: { list: [1] } };
    expect(seen).toEqual([expected, expected, expected]);
  });
});

describe('a returned sample is held against the record:', () => {
  const shifted = <T>(list: readonly T[], by: T): T[] => [by, ...list.slice(0, -1)];
  it.each<[string, (sample: { [K in keyof EpisodeSample]: number[] }, prompt: number) => object, RegExp]>([
    [
      'a mask one too early',
      ({ lossMask }) => ({ lossMask: [...lossMask.slice(1), 0] }),
      /lossMask of the sample is 1 at position 10, which the engine did not generate; it generated 11 to/,
    ],
    ['a mask one too late', ({ lossMask }) => ({ lossMask: shifted(lossMask, 0) }), /is 1 at position 12 and 0 at position 11/],
    [
      'log-probabilities one too late',
      ({ logprobs }) => ({ logprobs: shifted(logprobs, 0) }),
      /logprobs of the sample is 0 at position 11, the engine gave -/,
    ],
    [
      'another version',
      ({ versions }) => ({ versions: versions.map((v) => (v < 0 ? v : 6)) }),
      /versions of the sample is 6 at position 11, the engine gave 7/,
    ],
    [
      'other tokens',
      ({ inputIds }, prompt) => ({ inputIds: inputIds.with(prompt + 1, 5) }),
      /inputIds of the sample is 5 at position 12, where turn 0 has/,
    ],
    ['a short list', ({ logprobs }) => ({ logprobs: logprobs.slice(1) }), /logprobs .* has \d+ entries, inputIds has \d+/],
    ['a mask of nothing', ({ lossMask }) => ({ lossMask: lossMask.map(() => 0) }), /0 everywhere/],
    ['a mask of halves', ({ lossMask }) => ({ lossMask: lossMask.with(0, 0.5) }), /0\.5 at position 0/],
    ['two dimensions', ({ inputIds }) => ({ inputIds: [inputIds] }), /inputIds of the sample holds \[/],
    ['a reward that is none', () => ({ rewards: Number.NaN }), /rewards of the sample is NaN/],
    ['Python names', ({ lossMask }) => ({ loss_mask: lossMask }), /has loss_mask, expected inputIds, lossMask/],
  ])('%s is found', async (_, change, message) => {
    const { outcome, grade } = await rollout(async (engine, data) => {
      const response = await first(engine, data);
      expect(response.inputTokens.length).toBe(11);
      const sample = episodeSample(response, 1);
      return { ...sample, ...change(sample as never, response.inputTokens.length) };
    });
    expect(outcome).toEqual({ kind: 'failed', code: 'WORKFLOW_BAD_RESULT', message: expect.stringMatching(message) });
    expect(grade.kind).toBe('ungraded');
  });

  it('a token trained twice with two rewards is found', async () => {
    const { outcome } = await rollout(async (engine, data) => {
      const response = await first(engine, data);
      return [episodeSample(response, 1), episodeSample(response, 0)];
    });
    expect(outcome).toMatchObject({
      message: expect.stringMatching(/trained in samples 0 and 1, with the rewards 1 and 0/),
    });
  });

  it.each([
    [[], /an empty list/],
    ['done', /returned 'done'/],
    [7, /returned 7/],
    [undefined, /returned undefined/],
    [{}, /an empty map/],
    [{ abc: { reward: 1 } }, /"abc", which the rollout does not have/],
    [{ abc: 1 }, /returned undefined for completion abc/],
  ])('%j is no result', async (returned, message) => {
    const { outcome } = await rollout((engine, data) => first(engine, data).then(() => returned));
    expect(outcome).toEqual({ kind: 'failed', code: 'WORKFLOW_BAD_RESULT', message: expect.stringMatching(message) });
  });
});

it('the engine gives one answer to a request, and says so where several are asked for', async () => {
  const { outcome } = await rollout((engine) => engine.agenerate({ inputIds: [1, 2], gconfig: { nSamples: 2 } }));
  expect(outcome).toMatchObject({ kind: 'failed', code: 'REQUEST_INVALID', message: expect.stringMatching(/nSamples is 2/) });
});

describe('the class', () => {
  const problemsOf = (Class: unknown): { workflow: unknown; problems: readonly TrainyardError[] } => {
    const problems: TrainyardError[] = [];
    const module: EntryModule = { exports: [], problem: (mistake) => void problems.push(mistake) };
    return { workflow: asWorkflow(Class, module), problems };
  };

  it('is made once in a process, however many rollouts there are', async () => {
    let made = 0;
    class Heavy extends RolloutWorkflow {
      constructor() {
        super();
        made++;
      }
      override async arunEpisode(engine: InferenceEngine, data: EpisodeData): Promise<EpisodeResult> {
        return episodeSample(await first(engine, data), 1);
      }
    }
    await using rollouts = await scriptedRollouts(Heavy);
    expect(made).toBe(1);
    const ended = await Promise.all([rollouts.run(), rollouts.run(), rollouts.run()]);
    expect(ended.map(({ outcome }) => outcome.kind)).toEqual(['completed', 'completed', 'completed']);
    expect({ made, name: rollouts.workflow.name }).toEqual({ made: 1, name: 'Heavy' });
  });

  /** Without its abstract method, so that a class may lack or misname it. */
  const Base = RolloutWorkflow as unknown as new () => object;

  it('is no workflow while it is abstract', () => {
    class Half extends Base {}
    class Marked extends Base {
      static abstract = true;
      async arunEpisode() {}
    }
    for (const Class of [RolloutWorkflow, Half, Marked]) expect(problemsOf(Class)).toEqual({ workflow: undefined, problems: [] });
  });

  class Sync extends Base {
    arunEpisode() {}
  }
  class Snake extends Base {
    async arun_episode() {}
  }
  class Needy extends Base {
    constructor(_needed: number) {
      super();
    }
    async arunEpisode() {}
  }
  it.each<[string, unknown, RegExp]>([
    ['a sync episode', Sync, /arunEpisode of Sync is a Function/],
    ['Python’s name', Snake, /Snake has arun_episode/],
    ['constructor arguments', Needy, /constructor of Needy takes arguments/],
  ])('with %s is refused by name', (_, Class, message) => {
    expect(problemsOf(Class).problems.map((problem) => problem.message)).toEqual([expect.stringMatching(message)]);
  });
});
