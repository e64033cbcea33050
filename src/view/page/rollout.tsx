/** One rollout: what it was, then its conversation, its tokens, or what was printed and measured. */
import { useState } from 'preact/hooks';
import type { RolloutView, TokenView } from '../api.ts';
import { Conversation } from './conversation.tsx';
import { MarkDialog, type Marking } from './curation.tsx';
import { exported, useAnswer } from './data.ts';
import { at, Empty, Facts, number, OutcomeMark, RewardMark, Shown, seconds, whole } from './parts.tsx';
import { Tokens } from './tokens.tsx';

const TABS = ['Conversation', 'Tokens', 'Log'] as const;

/** Reward parts and grader metrics. */
const numbers = (of: Readonly<Record<string, number>> = {}): readonly (readonly [string, string])[] =>
  Object.entries(of).map(([name, value]) => [name, number(value)]);

function Head({ run, view }: { readonly run: string; readonly view: RolloutView }) {
  const { row, outcome, grade } = view;
  const why = grade.kind === 'ungraded' ? grade.why : grade.kind === 'failed' ? `${grade.code}: ${grade.message}` : null;
  const failed =
    outcome.kind === 'failed' ? `${outcome.code}: ${outcome.message}` : outcome.kind === 'rejected' ? outcome.reason : null;
  return (
    <>
      <h1 class="text">
        {row.taskId} <span class="muted">{row.rolloutId}</span>
      </h1>
      <Facts
        of={[
          ['Reward', <RewardMark {...row} />],
          ...numbers(row.parts),
          ['Outcome', row.outcome === 'completed' && row.excluded === null ? 'completed' : <OutcomeMark {...row} />],
          ['Group', <a href={`#/run/${run}/group/${encodeURIComponent(row.groupId)}`}>compare its rollouts</a>],
          ['Purpose', row.purpose === 'eval' ? 'held-out' : 'training'],
          ['Trained in step', row.step ?? '—'],
          ['Policy version', row.versions === null ? '—' : [...new Set(row.versions)].join(' to ')],
          ['Turns', row.turns],
          ['Sampled', `${whole(row.tokens)} tokens`],
          ['Time', seconds(row.seconds)],
        ]}
      />
      {failed !== null && <p class="notice error text">✕ {failed}</p>}
      {why !== null && <p class="notice warning text">△ No reward: {why}</p>}
      {row.excluded !== null && <p class="notice warning text">△ Excluded from training: {row.excluded}</p>}
    </>
  );
}

function Log({ view }: { readonly view: RolloutView }) {
  const { logs, grade, metadata, metrics, output, startedAt } = view;
  const data = { Output: output, Metadata: metadata, Grade: grade } as const;
  return (
    <section aria-label="Log">
      <Facts
        of={[['Started', at(startedAt)], ['Took', seconds(view.row.seconds)], ...numbers(view.row.metrics), ...numbers(metrics)]}
      />
      <h2>Printed by workflow and grader</h2>
      {logs.length === 0 ? (
        <Empty>Nothing was printed.</Empty>
      ) : (
        <ol class="log">
          {logs.map(({ at: when, text }, i) => (
            <li key={i}>
              <span class="muted num">+{seconds((when - startedAt) / 1000)}</span> <span class="text">{text}</span>
            </li>
          ))}
        </ol>
      )}
      {Object.entries(data).map(([name, value]) => (
        <div key={name}>
          <h2>{name}</h2>
          {value === undefined ? (
            <p class="muted">none</p>
          ) : (
            <pre class="text code">{typeof value === 'string' ? value : JSON.stringify(value, null, 2)}</pre>
          )}
        </div>
      ))}
    </section>
  );
}

function TokensTab({ path }: { readonly path: string }) {
  return <Shown of={useAnswer<TokenView>(`${path}/tokens`)}>{(view) => <Tokens view={view} />}</Shown>;
}

export function Rollout({ run, id, query }: { readonly run: string; readonly id: string; readonly query: URLSearchParams }) {
  const [marked, mark] = useState(0);
  const [marking, open] = useState<Marking>();
  const path = `/api/runs/${run}/rollouts/${encodeURIComponent(id)}`;
  const answer = useAnswer<RolloutView>(path, marked);
  const tab = TABS.find((name) => name.toLowerCase() === query.get('tab')) ?? 'Conversation';
  return (
    <Shown of={answer}>
      {(view) => (
        <>
          <Head run={run} view={view} />
          <div class="row between">
            <nav class="tabs" aria-label="Rollout">
              {TABS.map((name) => (
                <a
                  key={name}
                  href={`#/run/${run}/rollout/${encodeURIComponent(id)}?tab=${name.toLowerCase()}`}
                  aria-current={name === tab ? 'page' : undefined}
                >
                  {name}
                </a>
              ))}
            </nav>
            {exported === null && (
              <button type="button" class="quiet" onClick={() => open({ rolloutIds: [id], undo: view.row.excluded !== null })}>
                {view.row.excluded === null ? 'Exclude rollout…' : 'Take rollout back…'}
              </button>
            )}
          </div>
          {tab === 'Conversation' && (
            <Conversation view={view} exclude={(turn, undo) => open({ rolloutIds: [id], turn, undo })} />
          )}
          {tab === 'Tokens' && <TokensTab path={path} />}
          {tab === 'Log' && <Log view={view} />}
          {marking && <MarkDialog run={run} marking={marking} done={() => mark(marked + 1)} close={() => open(undefined)} />}
        </>
      )}
    </Shown>
  );
}
