/** The page: which screen the address names, what is always there (where one is, whether it is live), and the keys. */
import 'uplot/dist/uPlot.min.css';
import './page.css';
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { Dialog } from './curation.tsx';
import { exported, follow, useLive } from './data.ts';
import { Compare, Group } from './group.tsx';
import { at, Empty, runHref } from './parts.tsx';
import { Rollout } from './rollout.tsx';
import { Rollouts } from './rollouts.tsx';
import { Runs, StateBadge } from './runs.tsx';

interface Route {
  readonly parts: readonly string[];
  readonly query: URLSearchParams;
}

function routeNow(): Route {
  const [path = '', query] = location.hash.replace(/^#\/?/, '').split('?');
  const decode = (part: string): string => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { parts: path.split('/').filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function Screen({ parts: [screen, first = '', kind, id], query }: Route) {
  if (screen === undefined) return <Runs />;
  if (screen === 'run' && kind === undefined) return <Rollouts key={first} run={first} query={query} />;
  if (screen === 'run' && kind === 'rollout' && id !== undefined) return <Rollout key={id} run={first} id={id} query={query} />;
  if (screen === 'run' && kind === 'group' && id !== undefined) return <Group key={id} run={first} id={id} />;
  if (screen === 'compare' && kind !== undefined) return <Compare a={first} b={kind} />;
  return <Empty>There is no such place. Go to the runs, above.</Empty>;
}

const KEYS = [
  ['j, ↓', 'next'],
  ['k, ↑', 'previous'],
  ['Enter', 'open'],
  ['x, space', 'select a rollout'],
  ['/', 'filter'],
  ['← →', 'token by token'],
  ['Esc', 'back'],
  ['?', 'these keys'],
] as const;

/** The list moves its own cursor; elsewhere the focus moves through what can be opened. */
function step(by: 1 | -1, key: string): void {
  const list = document.getElementById('list');
  if (list !== null) {
    list.focus();
    return void list.dispatchEvent(new KeyboardEvent('keydown', { key }));
  }
  const places = [...document.querySelectorAll<HTMLElement>('[data-nav]')];
  const now = places.findIndex((place) => place.contains(document.activeElement));
  places[Math.max(0, Math.min(places.length - 1, now + by))]?.focus();
}

function useKeys(help: () => void): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const { target, key } = event;
      const isTyping =
        target instanceof HTMLElement && target.closest('input:not([type=checkbox], [type=radio]), select, textarea') !== null;
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]'))
        return;
      if (key === 'Escape') {
        const { parts } = routeNow();
        if (isTyping) target.blur();
        else location.hash = parts[0] === 'run' && parts.length > 2 ? runHref(parts[1]!) : '#/';
      } else if (isTyping) return;
      else if (key === '/') document.getElementById('filter')?.focus();
      else if (key === '?') help();
      else if (key === 'j' || key === 'ArrowDown') step(1, key);
      else if (key === 'k' || key === 'ArrowUp') step(-1, key);
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, [help]);
}

function Status() {
  const { connection, runs = [] } = useLive();
  const said = {
    connecting: 'connecting…',
    live: runs.some(({ state }) => state === 'running') ? '● live' : '● connected',
    lost: '△ connection lost, retrying',
    file: `exported ${at(exported?.takenAt ?? null)}`,
  };
  return (
    <span class={`status ${connection}`} role="status">
      {said[connection]}
    </span>
  );
}

function App() {
  const [route, go] = useState(routeNow);
  const [help, setHelp] = useState(false);
  const { runs } = useLive();
  useEffect(() => {
    const moved = (): void => {
      go((before) => {
        if (before.parts.join() !== routeNow().parts.join()) scrollTo(0, 0);
        return routeNow();
      });
    };
    addEventListener('hashchange', moved);
    return () => removeEventListener('hashchange', moved);
  }, []);
  useKeys(() => setHelp(true));
  const [screen, first, kind, id] = route.parts;
  const run = screen === 'run' ? runs?.find((one) => one.id === first) : undefined;
  useEffect(() => {
    document.title = [id, run?.path, 'Trainyard'].filter(Boolean).join(' · ');
  });
  return (
    <>
      <header class="top">
        <nav aria-label="Where you are">
          <a href="#/">trainyard</a>
          {run && (
            <>
              {' / '}
              <a href={runHref(run.id)}>{run.path}</a> <StateBadge state={run.state} />
            </>
          )}
          {kind && id && <span class="muted">{` / ${kind} ${id}`}</span>}
        </nav>
        <span class="row">
          <Status />
          <button type="button" class="quiet" aria-label="Keys" onClick={() => setHelp(true)}>
            ?
          </button>
        </span>
      </header>
      <main>
        <Screen {...route} />
      </main>
      {help && (
        <Dialog title="Keys" close={() => setHelp(false)}>
          <dl class="keys">
            {KEYS.map(([key, meaning]) => (
              <div key={key}>
                <dt>
                  <kbd>{key}</kbd>
                </dt>
                <dd>{meaning}</dd>
              </div>
            ))}
          </dl>
          <form method="dialog" class="row end">
            <button type="submit">Close</button>
          </form>
        </Dialog>
      )}
    </>
  );
}

void follow();
render(<App />, document.getElementById('app') ?? document.body.appendChild(document.createElement('div')));
