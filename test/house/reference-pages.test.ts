/** The reference pages that people write say what the code does. What the code prints itself is compared by printed-pages.test.ts. */
import { describe, expect, it } from 'vitest';
import { DIALECTS } from '../../src/gateway/gateway.ts';
import { CAPABILITIES, ROUTES } from '../../src/gateway/wire-protocol.ts';
import { step } from '../../src/shapes/flows/flow-protocol.ts';
import { sectionsOf, tableRows } from './markdown.ts';
import { readText } from './sources.ts';

const sectionOf = (page: string, title: string): string =>
  sectionsOf(readText(page))
    .find((section) => section.title === title)
    ?.lines.join('\n') ?? '';

/** Each promise of the store's page, by its number, with the tests that prove it: file → a title in it. */
const PROOFS: Readonly<Record<number, Readonly<Record<string, string>>>> = {
  1: {
    'src/store/sqlite.test.ts': 'loses nothing it acknowledged when it is killed, time after time',
    'src/store/postgres.full.test.ts':
      'loses nothing acknowledged, and keeps nothing twice, when it is killed in the middle of writes',
    'test/e2e/serve-restart.full.test.ts': 'keep the trajectories of agent flows over a restart',
  },
  2: {
    'test/chaos/store-model.full.test.ts': 'gives the verdicts of the in-memory store and holds the same',
    'test/e2e/train.full.test.ts': 'each in one step, sampled by the version before it, each token once',
  },
  3: {
    'test/workers/workers.full.test.ts': 'park a rollout that kills three workers, with its log',
    'test/chaos/attempts-model.test.ts': 'agrees with a queue that keeps the rules',
  },
  4: {
    'test/e2e/tuner.test.ts': 'that fails or returns something else gives no reward, never 0',
    'src/grading/inline.test.ts': 'is a timeout, and its late result, good or bad, is ignored',
  },
  5: {
    'test/e2e/unusual-workflows.test.ts':
      'hold every sampled token of trained roles once, with its own log-probability, and nothing else',
  },
  6: {
    'src/gateway/retries.test.ts': 'makes one question of all attempts that carry it',
    'src/gateway/model-server.test.ts': 'each rollout has its answer, and one turn',
  },
  7: {
    'src/gateway/stream-delivery.test.ts': 'one over HTTP that is not read is cut when its rollout ends',
    'test/e2e/measured-api.full.test.ts': 'loses no rollout if every second call is answered with 429 or 500',
  },
  8: {
    'test/cli/shutdown.full.test.ts': 'twice leaves at once with 143',
    'test/e2e/serve-restart.full.test.ts':
      'lose nothing that was answered, however often the server is killed in the middle of calls',
  },
  9: {
    'test/e2e/kill.full.test.ts': 'ends with the weights of one that was not, and nothing is lost or done twice',
    'test/workers/workers.full.test.ts': 'go on when the coordinator is killed, or ended, and resumed, to the same bytes',
  },
  10: {
    'test/e2e/reward-hacking.full.test.ts': 'by the routes that give rewards: each refuses its key',
    'src/places/workers/rights.full.test.ts': 'may do what the table of rights says and nothing else',
  },
};

describe('docs/reference/store.md', () => {
  const promises = tableRows(sectionOf('docs/reference/store.md', 'What holds when things fail')).filter(([first]) =>
    /^\d/.test(first ?? ''),
  );

  it.each(Object.entries(PROOFS))('names the tests of promise %s, which exist', (number, proofs) => {
    const [, , tests = ''] = promises.find(([first]) => first?.startsWith(`${number}. `)) ?? [];
    expect(tests.split(' ')).toEqual(Object.keys(proofs).map((file) => `\`${file}\``));
    for (const [file, title] of Object.entries(proofs)) expect(readText(file), file).toContain(title);
  });

  it('has ten promises', () => {
    expect(promises).toHaveLength(10);
  });
});

describe('docs/reference/gateway.md', () => {
  it('says what each capability may that has a route', () => {
    const named = CAPABILITIES.filter((one) => ROUTES.some(({ who }) => who.includes(one)));
    const text = sectionOf('docs/reference/gateway.md', 'Who calls');
    expect(named.filter((one) => !text.includes(`\`${one}\``))).toEqual([]);
  });

  it('serves each dialect by a route of its own', () => {
    expect(Object.keys(DIALECTS)).toEqual(ROUTES.filter(({ does }) => does === 'ask').map(({ path }) => path));
  });
});

describe('docs/reference/agent-flow.md', () => {
  it('names each field of a step', () => {
    const text = sectionOf('docs/reference/agent-flow.md', '`submit_steps`');
    expect(Object.keys(step.shape).filter((field) => !text.includes(`\`${field}\``))).toEqual([]);
  });
});
