/** Rollouts side by side: those of one task in a group, ordered by reward, with where they part; and two runs, task by task. */
import type { Message } from '../../core/types.ts';
import type { Comparison, TaskChange } from '../../evaluation/compare.ts';
import type { GroupView, RolloutView } from '../api.ts';
import { useAnswer, useLive } from './data.ts';
import {
  Badge,
  Empty,
  Facts,
  number,
  OutcomeMark,
  percent,
  plural,
  RewardMark,
  rolloutHref,
  runHref,
  Shown,
  seconds,
  whole,
} from './parts.tsx';

const callsOf = ({ tool_calls: calls = [] }: Message): string =>
  calls.map((call) => `${call.function.name}(${call.function.arguments})`).join('\n');
const textOf = (message: Message): string => [message.reasoning, message.content, callsOf(message)].filter(Boolean).join('\n');

/** Characters that both begin with. */
function shared(one: string, other: string): number {
  let n = 0;
  while (n < one.length && one[n] === other[n]) n++;
  return n;
}

const saidIn = (view: RolloutView | undefined, turn: number): string | undefined => {
  const response = view?.turns[turn]?.response;
  return response && textOf(response);
};

/** The first turn that says something else; −1 if none does. */
const divergence = (view: RolloutView, other: RolloutView | undefined): number =>
  view.turns.findIndex((_, turn) => saidIn(view, turn) !== saidIn(other, turn));

interface ColumnProps {
  readonly run: string;
  readonly view: RolloutView;
  /** The best rollout; for the best itself, the next one that differs. */
  readonly against: RolloutView | undefined;
}

function Column({ run, view, against }: ColumnProps) {
  const { row, turns } = view;
  const diverges = against === undefined ? -1 : divergence(view, against);
  const isShorter = turns.length < (against?.turns.length ?? 0);
  return (
    <article class="column" aria-label={`Rollout ${row.rolloutId}`}>
      <header>
        <a href={rolloutHref(run, row.rolloutId)} data-nav class="text">
          {row.rolloutId}
        </a>
        <p class="row">
          <RewardMark {...row} /> <OutcomeMark {...row} />
        </p>
        <p class="muted num small">{`${plural(turns.length, 'turn')} · ${whole(row.tokens)} tokens · ${seconds(row.seconds)}`}</p>
      </header>
      {turns.map(({ index, prompt, stopReason }, i) => {
        const text = saidIn(view, i) ?? '';
        const same = i === diverges ? shared(text, saidIn(against, i) ?? '') : text.length;
        const heard = i === 0 ? [] : prompt.filter(({ role }) => role !== 'assistant');
        return (
          <div key={index} class="step">
            {heard.map(({ role, content }, n) => (
              <p key={n} class="text muted small">{`${role === 'tool' ? '← ' : '› '}${content ?? ''}`}</p>
            ))}
            {i === diverges && <Badge kind="warn">↳ diverges here</Badge>}
            <p class="text">
              <span class={i <= diverges ? 'same' : ''}>{text.slice(0, same)}</span>
              {same < text.length && <mark>{text.slice(same)}</mark>}
              {text === '' && <span class="muted">(said nothing)</span>}
            </p>
            {stopReason === 'length' && <Badge kind="bad">✂ cut off</Badge>}
          </div>
        );
      })}
      {diverges < 0 && against && <p class="muted small">{isShorter ? 'Ends here.' : 'Says the same as the first.'}</p>}
    </article>
  );
}

export function Group({ run, id }: { readonly run: string; readonly id: string }) {
  return (
    <Shown of={useAnswer<GroupView>(`/api/runs/${run}/groups/${encodeURIComponent(id)}`)}>
      {({ taskId, purpose, rollouts }) => {
        const rewards = rollouts.flatMap(({ row }) => row.reward ?? []);
        const signal = new Set(rewards).size > 1;
        const first = rollouts[0]?.turns[0]?.prompt ?? [];
        return (
          <>
            <h1 class="text">
              {taskId} <span class="muted">group {id}</span>
            </h1>
            <Facts
              of={[
                ['Rollouts', rollouts.length],
                ['Successes', rollouts.filter(({ row }) => row.success).length],
                [
                  'Mean reward',
                  rewards.length === 0 ? '—' : number(rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length),
                ],
                ['Signal', signal ? 'yes: rewards differ' : 'no: nothing to learn from equal rewards'],
                ['Purpose', purpose === 'eval' ? 'held-out' : 'training'],
              ]}
            />
            {first.map((message, n) => (
              <p key={n} class="text">
                <span class="muted small">{message.role}</span> {message.content}
              </p>
            ))}
            <div class="columns" role="group" tabIndex={0} aria-label="Rollouts, highest reward first">
              {rollouts.map((view, i) => (
                <Column
                  key={view.row.rolloutId}
                  run={run}
                  view={view}
                  against={i === 0 ? rollouts.find((other) => divergence(view, other) >= 0) : rollouts[0]}
                />
              ))}
            </div>
          </>
        );
      }}
    </Shown>
  );
}

function Changes({
  title,
  of,
  a,
  b,
}: {
  readonly title: string;
  readonly of: readonly TaskChange[];
  readonly a: string;
  readonly b: string;
}) {
  const filter = (id: string): string => `task=${JSON.stringify(id)} && purpose=eval`;
  return (
    <section aria-label={title}>
      <h2>
        {title} <span class="muted num">{of.length}</span>
      </h2>
      {of.length === 0 && <p class="muted">None.</p>}
      <ul class="changes">
        {of.slice(0, 200).map(({ id, success, meanReward }) => (
          <li key={id} class="num">
            <span class="text">{id}</span>
            <a data-nav href={runHref(a, filter(id))}>{`A ${percent(success.a)}`}</a> →{' '}
            <a href={runHref(b, filter(id))}>{`B ${percent(success.b)}`}</a>
            {meanReward && <span class="muted">{`reward ${number(meanReward.a)} → ${number(meanReward.b)}`}</span>}
          </li>
        ))}
      </ul>
      {of.length > 200 && <p class="muted">{whole(of.length - 200)} more: trainyard diff lists all.</p>}
    </section>
  );
}

export function Compare({ a, b }: { readonly a: string; readonly b: string }) {
  const { runs } = useLive();
  const pathOf = (run: string): string => runs?.find(({ id }) => id === run)?.path ?? run;
  return (
    <Shown of={useAnswer<Comparison>(`/api/diff?a=${a}&b=${b}`)}>
      {({ success, meanReward, tasks, models, failed, better, worse, sameSuccess, ...rest }) => {
        const leftOut = {
          'only in A': rest.onlyInA,
          'only in B': rest.onlyInB,
          'whose row changed': rest.changedTasks,
          unfinished: rest.unfinished,
        };
        const left = Object.entries(leftOut).flatMap(([what, ids]) =>
          ids.length === 0 ? [] : [`${plural(ids.length, 'task')} ${what}`],
        );
        return (
          <>
            <h1>Compare</h1>
            <p class="text">
              <b>A</b> <a href={runHref(a)}>{pathOf(a)}</a> <span class="muted">{models.a}</span>
            </p>
            <p class="text">
              <b>B</b> <a href={runHref(b)}>{pathOf(b)}</a> <span class="muted">{models.b}</span>
            </p>
            <Facts
              of={[
                ['Success', `${percent(success.a)} → ${percent(success.b)}`],
                ['Difference', `${success.delta > 0 ? '+' : ''}${percent(success.delta)}`],
                ['95 % interval', `${percent(success.ci[0])} to ${percent(success.ci[1])}`],
                ['Chance of this by luck (p)', success.p < 0.001 ? '< 0.001' : success.p.toFixed(3)],
                ['Tasks in both', whole(tasks)],
                meanReward !== null && ['Mean reward', `${number(meanReward.a)} → ${number(meanReward.b)}`],
                ['Failed rollouts', `${failed.a} → ${failed.b}`],
              ]}
            />
            {[
              ...rest.otherDifferences.map((what) => `Also different: ${what}`),
              ...rest.earlierPolicies,
              ...(left.length === 0 ? [] : [`Not compared: ${left.join(', ')}`]),
            ].map((text) => (
              <p key={text} class="notice warning text">
                △ {text}
              </p>
            ))}
            {better.length + worse.length + sameSuccess.length === 0 && <Empty>Every task turned out the same.</Empty>}
            <div class="halves">
              <Changes title="Better in B" of={better} a={a} b={b} />
              <Changes title="Worse in B" of={worse} a={a} b={b} />
            </div>
            {sameSuccess.length > 0 && <Changes title="Same success, other reward" of={sameSuccess} a={a} b={b} />}
          </>
        );
      }}
    </Shown>
  );
}
