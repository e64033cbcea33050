/** The first screen: which runs there are, how they went, what they warned about, and their numbers over the steps. */
import { useMemo, useState } from 'preact/hooks';
import type { RunEvent } from '../../core/events.ts';
import type { RunInfo } from '../api.ts';
import { Charts, Swatch } from './charts.tsx';
import { useLive } from './data.ts';
import { at, Badge, Empty, Notice, percent, runHref, Shown, toggled, whole } from './parts.tsx';

const STATES = {
  running: { kind: 'live', text: '● running' },
  done: { kind: 'good', text: '✓ done' },
  failed: { kind: 'bad', text: '✕ failed' },
  stopped: { kind: 'warn', text: '◼ stopped' },
} as const;
const KINDS = { train: 'training', eval: 'evaluation', sft: 'supervised', serve: 'served' } as const;

/** The first and the latest evaluation. */
function successOf(events: readonly RunEvent[]): string {
  const shares = events.flatMap((event) => (event.type === 'eval-end' ? [event.score.success] : []));
  return (
    [...new Set([shares[0], shares.at(-1)])].flatMap((share) => (share === undefined ? [] : percent(share))).join(' → ') || '—'
  );
}

export const StateBadge = ({ state }: Pick<RunInfo, 'state'>) => <Badge kind={STATES[state].kind}>{STATES[state].text}</Badge>;

function RunLine(props: {
  readonly run: RunInfo;
  readonly place: number;
  readonly success: string;
  readonly hidden: boolean;
  toggle(): void;
}) {
  const { run, place, success, hidden, toggle } = props;
  return (
    <tr class={hidden ? 'off' : ''}>
      <td>
        <button
          type="button"
          class="plain"
          aria-pressed={!hidden}
          title="Show in charts"
          aria-label={`${run.path} in charts`}
          onClick={toggle}
        >
          <Swatch place={place} />
        </button>
      </td>
      <td class="grow">
        <a href={runHref(run.id)} data-nav>
          {run.path}
        </a>
        <div class="muted text small">
          {run.problem ??
            [KINDS[run.kind], run.entry, run.model, run.startedAt !== null && at(run.startedAt)].filter(Boolean).join(' · ')}
        </div>
      </td>
      <td>
        <StateBadge state={run.state} />
      </td>
      <td class="num">{success}</td>
      <td class="num">{whole(run.steps)}</td>
      <td class="num">{whole(run.rollouts)}</td>
    </tr>
  );
}

function Compare({ runs }: { readonly runs: readonly RunInfo[] }) {
  const [[a, b], set] = useState<readonly [string, string]>([runs[0]!.id, runs[1]!.id]);
  const choice = (value: string, label: string, chosen: (id: string) => void) => (
    <select aria-label={label} value={value} onChange={({ currentTarget }) => chosen(currentTarget.value)}>
      {runs.map(({ id, path }) => (
        <option key={id} value={id}>
          {path}
        </option>
      ))}
    </select>
  );
  return (
    <p class="row">
      <span class="muted">Compare, task by task:</span>
      {choice(a, 'First run', (id) => set([id, b]))} <span class="muted">with</span>{' '}
      {choice(b, 'Second run', (id) => set([a, id]))}
      <a class="button" href={`#/compare/${a}/${b}`}>
        Compare
      </a>
    </p>
  );
}

export function Runs() {
  const { runs, events, problem } = useLive();
  const [hidden, hide] = useState<ReadonlySet<string>>(new Set());
  const shown = useMemo(
    () =>
      (runs ?? []).flatMap(({ id, path }, place) => (hidden.has(id) ? [] : [{ name: path, place, events: events[id] ?? [] }])),
    [runs, events, hidden],
  );
  const said = shown.flatMap(({ name, events: own }) =>
    own.flatMap((event) => (event.type === 'warning' || event.type === 'error' ? [{ ...event, name }] : [])),
  );
  return (
    <Shown of={runs === undefined ? (problem === undefined ? {} : { problem }) : { value: runs }}>
      {(all) => (
        <>
          <h1>Runs</h1>
          {all.length === 0 && <Empty>No runs are given. Start one: trainyard train my-agent.ts</Empty>}
          <table class="runs">
            <thead>
              <tr>
                <th>
                  <span class="hidden">In charts</span>
                </th>
                <th>Run</th>
                <th>State</th>
                <th class="num">Held-out success</th>
                <th class="num">Steps</th>
                <th class="num">Rollouts</th>
              </tr>
            </thead>
            <tbody>
              {all.map((run, place) => (
                <RunLine
                  key={run.id}
                  run={run}
                  place={place}
                  success={successOf(events[run.id] ?? [])}
                  hidden={hidden.has(run.id)}
                  toggle={() => hide(toggled(hidden, run.id))}
                />
              ))}
            </tbody>
          </table>
          {all.length > 1 && <Compare runs={all} />}
          {said.length > 0 && (
            <section aria-label="Warnings and errors">
              {said.slice(-8).map(({ type, name, message, hint }, i) => (
                <Notice key={i} kind={type} message={all.length > 1 ? `${name}: ${message}` : message} hint={hint} />
              ))}
            </section>
          )}
          <Charts runs={shown} />
        </>
      )}
    </Shown>
  );
}
