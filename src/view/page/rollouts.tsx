/**
 * The rollouts of a run: a list that holds only the rows in sight, so that 100,000 stay smooth; a filter, which the server checks; what
 * matches, counted. The filter and the order are in the address, so that a view can be sent to somebody.
 */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { FILTER_FIELDS } from '../../core/filter.ts';
import type { RolloutRow } from '../../run/inspect.ts';
import type { RolloutPage, SortKey } from '../api.ts';
import { DatasetDialog, MarkDialog, type Marking } from './curation.tsx';
import { ask, exported, type Problem, problemOf, useLive } from './data.ts';
import {
  Badge,
  Empty,
  Loading,
  Notice,
  OutcomeMark,
  plural,
  RewardMark,
  rewardText,
  rolloutHref,
  seconds,
  toggled,
  whole,
} from './parts.tsx';

const ROW = 36;
const PAGE = 100;
const EXAMPLE = 'reward<0.2 && turns>5 && tool~"search"';
const EXAMPLES = [
  '!success',
  'reward<0.2',
  'turns>5',
  'tool~"search"',
  'outcome!=completed',
  'forks>0',
  'purpose=eval',
  'excluded',
];
/** Where the list was when it was left, by its query. */
const left = new Map<string, { readonly top: number; readonly cursor: number }>();

interface Loaded {
  readonly query: string;
  readonly summary?: RolloutPage;
  readonly pages: ReadonlyMap<number, readonly RolloutRow[]>;
  readonly problem?: Problem | undefined;
}

/** The pages from `first` to `last`; asked again, and shown meanwhile, when `version` changes. */
function useRows(query: string, first: number, last: number, version: string): Loaded {
  const [loaded, set] = useState<Loaded>({ query, pages: new Map() });
  const fresh = useRef<{ key: string; pages: Set<number> }>({ key: '', pages: new Set() });
  useEffect(() => {
    const key = `${query} ${version}`;
    if (fresh.current.key !== key) fresh.current = { key, pages: new Set() };
    const { pages } = fresh.current;
    const read = async (page: number): Promise<void> => {
      pages.add(page);
      try {
        const summary = await ask<RolloutPage>(`${query}&from=${page * PAGE}&count=${PAGE}`);
        if (fresh.current.key !== key) return;
        set((before) => {
          const kept = before.query === query ? before.pages : new Map();
          return { query, summary, pages: new Map([...kept, [page, summary.rows]]) };
        });
      } catch (thrown) {
        pages.delete(page);
        if (fresh.current.key === key) set((before) => ({ ...before, problem: problemOf(thrown) }));
      }
    };
    for (let page = first; page <= last; page++) if (!pages.has(page)) void read(page);
  }, [query, first, last, version]);
  return loaded;
}

const COLUMNS: readonly (readonly [title: string, key?: SortKey, about?: string])[] = [
  ['Reward', 'reward'],
  ['Task', 'task'],
  ['Tools'],
  ['Step', 'seq', 'The step that trained it; sorts by the order of completion'],
  ['Turns', 'turns'],
  ['Tokens', 'tokens', 'Sampled'],
  ['Time', 'seconds'],
];

function Header({ sort, choose }: { readonly sort: string; choose(sort: string): void }) {
  return (
    <div class="line head" role="row">
      <span role="columnheader" aria-label="Selected" />
      {COLUMNS.map(([title, key, about]) => {
        const order = sort === key ? 'ascending' : sort === `-${key}` ? 'descending' : 'none';
        const next = order === 'descending' ? `${key}` : `-${key}`;
        return (
          <span key={title} role="columnheader" aria-sort={key && order} title={about}>
            <button type="button" class="plain" disabled={!key} onClick={() => choose(next)}>
              {title + { ascending: ' ↑', descending: ' ↓', none: '' }[order]}
            </button>
          </span>
        );
      })}
    </div>
  );
}

/** What a row says, by column. */
function cellsOf(run: string, row: RolloutRow): readonly ComponentChildren[] {
  const forks = Object.values(row.forks).reduce((sum, n) => sum + n, 0);
  const task = (
    <span class="task">
      <a href={rolloutHref(run, row.rolloutId)} tabIndex={-1}>
        {row.taskId}
      </a>{' '}
      <span class="muted small">{row.rolloutId}</span> {row.purpose === 'eval' && <Badge>held-out</Badge>}{' '}
      <OutcomeMark {...row} />{' '}
      {forks > 0 && <Badge title={Object.keys(row.forks).join(', ')}>{`↳ ${plural(forks, 'fork')}`}</Badge>}
    </span>
  );
  const tools = <span class="muted">{row.tools.join(', ')}</span>;
  return [<RewardMark {...row} />, task, tools, row.step ?? '—', row.turns, whole(row.tokens), seconds(row.seconds)];
}

interface LineProps extends Pick<Listed, 'run' | 'selected' | 'toggle'> {
  readonly row: RolloutRow | undefined;
  readonly index: number;
  readonly current: boolean;
}

function Line({ run, row, index, current, selected, toggle }: LineProps) {
  const id = `row-${index}`;
  const style = { top: `${index * ROW}px` };
  if (row === undefined) return <div role="row" class="line waiting" aria-rowindex={index + 2} id={id} style={style} />;
  const isSelected = selected.has(row.rolloutId);
  const own = { id, style, class: current ? 'line current' : 'line', 'aria-rowindex': index + 2 };
  const name = `Select ${row.rolloutId}`;
  const change = (): void => toggle(row.rolloutId);
  return (
    <div role="row" aria-selected={isSelected} {...own}>
      <span role="gridcell">
        {exported === null && <input type="checkbox" aria-label={name} tabIndex={-1} checked={isSelected} onChange={change} />}
      </span>
      {cellsOf(run, row).map((cell, i) => (
        <span role="gridcell" key={COLUMNS[i]![0]}>
          {cell}
        </span>
      ))}
    </div>
  );
}

interface Listed {
  readonly run: string;
  /** Names what is listed; another query begins at its own place. */
  readonly asked: string;
  readonly sort: string;
  readonly matching: number;
  readonly selected: ReadonlySet<string>;
  readonly view: View;
  rowAt(index: number): RolloutRow | undefined;
  toggle(rolloutId: string): void;
  look(view: View): void;
  choose(sort: string): void;
}

interface View {
  readonly top: number;
  readonly height: number;
}

const firstIn = ({ top }: View): number => Math.max(0, Math.floor(top / ROW) - 10);
const endOf = ({ top, height }: View): number => Math.ceil((top + height) / ROW) + 10;

function List({ run, asked, sort, matching, selected, view, rowAt, toggle, look, choose }: Listed) {
  const grid = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState(left.get(asked)?.cursor ?? 0);
  const seen = ({ scrollTop: top, clientHeight: height }: HTMLElement): void => look({ top, height });
  useEffect(() => {
    const element = grid.current!;
    element.scrollTop = left.get(asked)?.top ?? 0;
    const resized = new ResizeObserver(() => seen(element));
    resized.observe(element);
    return () => resized.disconnect();
  }, [asked]);
  useEffect(() => void left.set(asked, { top: view.top, cursor }));
  const move = (to: number): void => {
    const next = Math.max(0, Math.min(matching - 1, to));
    const element = grid.current!;
    const top = next * ROW;
    setCursor(next);
    // The header covers one row.
    element.scrollTop = Math.max(Math.min(element.scrollTop, top), top + 2 * ROW - element.clientHeight);
  };
  const pressed = (event: KeyboardEvent): void => {
    const screen = Math.floor(view.height / ROW) - 2;
    const steps = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1, PageDown: screen, PageUp: -screen, Home: -cursor, End: matching };
    const by = (steps as Readonly<Record<string, number>>)[event.key];
    const row = rowAt(cursor);
    if (by !== undefined) move(cursor + by);
    else if (event.key === 'Enter' && row) location.hash = rolloutHref(run, row.rolloutId);
    else if ((event.key === ' ' || event.key === 'x') && row && exported === null) toggle(row.rolloutId);
    else return;
    event.preventDefault();
  };
  const first = firstIn(view);
  const indexes = Array.from({ length: Math.max(0, Math.min(endOf(view), matching) - first) }, (_, i) => first + i);
  const roles = { role: 'grid', 'aria-label': 'Rollouts', 'aria-rowcount': matching + 1, 'aria-multiselectable': true } as const;
  const focus = { id: 'list', tabIndex: 0, 'aria-activedescendant': `row-${cursor}` };
  return (
    <div ref={grid} class="grid" {...roles} {...focus} onKeyDown={pressed} onScroll={({ currentTarget }) => seen(currentTarget)}>
      <Header sort={sort} choose={choose} />
      <div class="rows" role="rowgroup" style={{ height: `${matching * ROW}px` }}>
        {indexes.map((index) => (
          <Line
            key={index}
            run={run}
            row={rowAt(index)}
            index={index}
            current={index === cursor}
            selected={selected}
            toggle={toggle}
          />
        ))}
      </div>
    </div>
  );
}

interface FilterProps {
  readonly filter: string;
  readonly problem: Problem | undefined;
  apply(filter: string): void;
}

function Filter({ filter, problem, apply }: FilterProps) {
  const [text, setText] = useState(filter);
  useEffect(() => setText(filter), [filter]);
  useEffect(() => {
    const soon = setTimeout(() => text !== filter && apply(text), 350);
    return () => clearTimeout(soon);
  });
  const plain = { id: 'filter', spellcheck: false, autocomplete: 'off', placeholder: `Filter, such as ${EXAMPLE}` };
  const checked = { 'aria-label': 'Filter', 'aria-invalid': problem !== undefined, 'aria-describedby': 'filter-problem' };
  return (
    <search>
      <input type="search" {...plain} {...checked} value={text} onInput={({ currentTarget }) => setText(currentTarget.value)} />
      <div id="filter-problem" role="status">
        {problem && <Notice kind="error" {...problem} />}
      </div>
      <details>
        <summary class="muted small">Fields and examples</summary>
        <p class="muted small">
          {FILTER_FIELDS.join(', ')}, part.&lt;name&gt;, metric.&lt;name&gt;. Numbers: {'< <= > >= = !='}; text: = != ~ (contains)
          !~; join with && and ||, negate with !.
        </p>
      </details>
      <p class="row chips">
        {EXAMPLES.map((example) => (
          <button
            type="button"
            key={example}
            class="chip"
            onClick={() => apply(text.trim() === '' ? example : `${text} && ${example}`)}
          >
            {example}
          </button>
        ))}
      </p>
    </search>
  );
}

function Counts({ total, read, matching, meanReward, successes }: RolloutPage) {
  return (
    <>
      <b>{plural(matching, 'rollout')}</b> {matching === total ? '' : `of ${whole(total)} `}
      <span class="muted">
        {`· mean reward ${rewardText(meanReward)} · ${whole(successes)} successful`}
        {read < total && ` · ${whole(read)} read so far`}
      </span>
    </>
  );
}

interface ActionsProps {
  readonly selected: ReadonlySet<string>;
  readonly matching: number;
  open(dialog: 'dataset' | Marking): void;
  clear(): void;
}

function Actions({ selected, matching, open, clear }: ActionsProps) {
  const mark = (undo: boolean) => (): void => open({ rolloutIds: [...selected], undo });
  const actions = [
    ['Exclude…', mark(false)],
    ['Take back…', mark(true)],
    ['Clear', clear],
  ] as const;
  return (
    <p class="row">
      {selected.size > 0 && <span class="num">{selected.size} selected</span>}
      {(selected.size > 0 ? actions : []).map(([name, act]) => (
        <button type="button" key={name} onClick={act}>
          {name}
        </button>
      ))}
      <button type="button" onClick={() => open('dataset')} disabled={matching === 0}>
        Make a dataset of this filter…
      </button>
    </p>
  );
}

export function Rollouts({ run, query }: { readonly run: string; readonly query: URLSearchParams }) {
  const info = useLive().runs?.find(({ id }) => id === run);
  const filter = query.get('filter') ?? '';
  const sort = query.get('sort') ?? '-seq';
  const asked = `/api/runs/${run}/rollouts?filter=${encodeURIComponent(filter)}&sort=${sort}`;
  const [view, look] = useState<View>({ top: left.get(asked)?.top ?? 0, height: 600 });
  const [selected, select] = useState<ReadonlySet<string>>(new Set());
  const [dialog, open] = useState<'dataset' | Marking>();
  const [marked, mark] = useState(0);
  const version = `${info?.rollouts}/${info?.steps}/${marked}`;
  const [first, last] = [firstIn(view), endOf(view)].map((row) => Math.floor(row / PAGE)) as [number, number];
  const { summary, pages, problem } = useRows(asked, first, last, version);
  const matching = summary?.matching ?? 0;
  const rowAt = (index: number): RolloutRow | undefined => pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  const go = (changed: Readonly<Record<string, string>>): void => {
    const next = Object.entries({ filter, sort, ...changed }).filter(([, value]) => value !== '' && value !== '-seq');
    location.replace(`#/run/${run}${next.length === 0 ? '' : `?${new URLSearchParams(next)}`}`);
  };
  const close = (): void => open(undefined);
  const done = (): void => {
    select(new Set());
    mark(marked + 1);
  };
  const listed = {
    run,
    asked,
    sort,
    matching,
    selected,
    view,
    rowAt,
    look,
    toggle: (id: string) => select(toggled(selected, id)),
  };
  return (
    <div class="rollouts">
      <h1 class="text">{info?.path ?? 'Rollouts'}</h1>
      <Filter filter={filter} problem={problem} apply={(text) => go({ filter: text })} />
      <div class="row between">
        <p class="num" role="status">
          {summary && <Counts {...summary} />}
        </p>
        {exported === null && <Actions selected={selected} matching={matching} open={open} clear={() => select(new Set())} />}
      </div>
      {summary === undefined && problem === undefined && <Loading />}
      {summary?.total === 0 && <Empty>No rollouts yet. They appear here as they end.</Empty>}
      {summary && summary.total > 0 && matching === 0 && <Empty>No rollout matches this filter.</Empty>}
      {matching > 0 && <List key={asked} {...listed} choose={(key) => go({ sort: key })} />}
      {dialog === 'dataset' && (
        <DatasetDialog run={run} path={info?.path ?? ''} filter={filter} matching={matching} close={close} />
      )}
      {typeof dialog === 'object' && <MarkDialog run={run} marking={dialog} done={done} close={close} />}
    </div>
  );
}
