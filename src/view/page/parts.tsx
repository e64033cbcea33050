/** What several screens show alike: numbers with their units, states of an answer, rewards, outcomes, text of models as text. */
import type { ComponentChildren } from 'preact';
import type { RolloutRow } from '../../run/inspect.ts';
import type { Answer, Problem } from './data.ts';

const signed = (text: string): string => text.replace('-', '−');
export const whole = (n: number): string => signed(n.toLocaleString('en-US', { maximumFractionDigits: 0 }));
export const percent = (share: number): string => `${signed((100 * share).toFixed(1))} %`;
export const seconds = (s: number): string =>
  s < 0.1
    ? `${Math.round(1000 * s)} ms`
    : s < 60
      ? `${s.toFixed(s < 10 ? 2 : 0)} s`
      : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
export const plural = (n: number, noun: string): string => `${whole(n)} ${noun}${n === 1 ? '' : 's'}`;
/** Three digits that count. */
export function number(x: number): string {
  if (Number.isInteger(x)) return whole(x);
  return signed(Math.abs(x) >= 1e-3 && Math.abs(x) < 1e6 ? String(Number(x.toPrecision(3))) : x.toExponential(1));
}
export const rewardText = (reward: number | null): string => (reward === null ? '—' : signed(reward.toFixed(2)));
export const toggled = (set: ReadonlySet<string>, one: string): ReadonlySet<string> =>
  new Set(set.has(one) ? [...set].filter((other) => other !== one) : [...set, one]);
export const at = (ms: number | null): string =>
  ms === null ? '—' : new Date(ms).toLocaleString([], { dateStyle: 'medium', timeStyle: 'short' });
export const runHref = (run: string, filter = ''): string =>
  `#/run/${run}${filter === '' ? '' : `?filter=${encodeURIComponent(filter)}`}`;
export const rolloutHref = (run: string, id: string): string => `#/run/${run}/rollout/${encodeURIComponent(id)}`;

export function Notice({ kind, message, hint }: Problem & { readonly kind: 'error' | 'warning' }) {
  return (
    <div class={`notice ${kind}`} role={kind === 'error' ? 'alert' : 'note'}>
      <b>{kind === 'error' ? '✕ Error' : '△ Warning'}</b> <span class="text">{message}</span>
      {hint && <div class="muted text">→ {hint}</div>}
    </div>
  );
}

export const Empty = ({ children }: { readonly children: ComponentChildren }) => <div class="empty">{children}</div>;

export const Loading = () => <div class="loading" role="status" aria-label="Loading" />;

/** The states of an answer; `children` shows it once it is there. */
export function Shown<T>({ of, children }: { readonly of: Answer<T>; readonly children: (value: T) => ComponentChildren }) {
  if (of.problem !== undefined) return <Notice kind="error" {...of.problem} />;
  if (of.value === undefined) return <Loading />;
  return <>{children(of.value)}</>;
}

/** The bar is for rewards from 0 to 1; the number always says it exactly. */
export function RewardMark({ reward, success }: Pick<RolloutRow, 'reward' | 'success'>) {
  const share = Math.max(0, Math.min(1, reward ?? 0));
  const word = reward === null ? 'no reward' : success ? 'success' : 'no success';
  return (
    <span class={`reward ${reward === null ? 'none' : success ? 'good' : ''}`} title={word}>
      <span class="bar" aria-hidden="true">
        <i style={{ width: `${100 * share}%` }} />
      </span>
      <span class="value">{rewardText(reward)}</span>
      <span class="tick">{success ? '✓' : ''}</span>
    </span>
  );
}

const OUTCOMES = { completed: 'done', truncated: 'cut off', rejected: 'rejected', failed: 'failed' } as const;

export function OutcomeMark({ outcome, limit, excluded }: Pick<RolloutRow, 'outcome' | 'limit' | 'excluded'>) {
  return (
    <>
      {outcome !== 'completed' && <Badge kind="bad">{`${OUTCOMES[outcome]}${limit === null ? '' : `: ${limit}`}`}</Badge>}
      {excluded !== null && <Badge kind="warn" title={excluded}>{`excluded`}</Badge>}
    </>
  );
}

export function Badge(props: {
  readonly kind?: 'good' | 'bad' | 'warn' | 'live';
  readonly title?: string;
  readonly children: ComponentChildren;
}) {
  return (
    <span class={`badge ${props.kind ?? ''}`} title={props.title}>
      {props.children}
    </span>
  );
}

/** Names with numbers, in one row. */
export function Facts({ of }: { readonly of: readonly (readonly [name: string, value: ComponentChildren] | false)[] }) {
  return (
    <dl class="facts">
      {of.map(
        (fact) =>
          fact && (
            <div key={fact[0]}>
              <dt>{fact[0]}</dt>
              <dd>{fact[1]}</dd>
            </div>
          ),
      )}
    </dl>
  );
}
