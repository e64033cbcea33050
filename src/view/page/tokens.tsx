/**
 * The exact tokens of a rollout, as they are trained, each coloured by one measure. Long rows are cut into blocks that the browser lays out
 * only near the screen. What the policy did not sample has no values and is grey.
 */
import { memo } from 'preact/compat';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { TokenRow, TokenView } from '../api.ts';
import { Empty, number, plural, whole } from './parts.tsx';

interface Tint {
  readonly hue: string;
  /** 0 to 1. */
  readonly strength: number;
  readonly negative?: boolean;
}

interface TokenMeasure {
  readonly name: string;
  readonly about: string;
  readonly values: (row: TokenRow) => readonly number[] | null;
  /** Why there are none. */
  readonly missing?: string;
  /** `most`: the largest absolute value of the rows, of sampled tokens. */
  readonly tint: (value: number, most: number) => Tint;
  readonly legend: (most: number) => readonly (readonly [label: string, value: number])[];
}

const NO_TINT: Tint = { hue: '', strength: 0 };
const signs = (value: number, most: number): Tint => ({
  hue: value < 0 ? 'var(--minus)' : 'var(--plus)',
  strength: most === 0 ? 0 : Math.abs(value) / most,
  negative: value < 0,
});
const ends = (unit: string) => (most: number) =>
  [-most, 0, most].map((value) => [`${value > 0 ? '+' : ''}${number(value)}${unit}`, value] as const);

const MEASURES = {
  logprob: {
    name: 'Log-probability',
    about: 'How sure the policy was when it sampled the token. Stronger: less likely.',
    values: ({ logprobs }) => logprobs,
    tint: (value) => ({ hue: 'var(--warm)', strength: Math.sqrt(Math.min(1, -value / 5)) }),
    legend: () => [0, -0.7, -2.3, -5].map((value) => [`${number(value)} nats (${Math.round(100 * Math.exp(value))} %)`, value]),
  },
  advantage: {
    name: 'Advantage',
    about: 'Positive: made more likely. Negative (underlined): made less likely.',
    values: ({ advantages }) => advantages,
    missing: 'No advantages: its group has no signal, or they depend on a whole batch.',
    tint: signs,
    legend: ends(''),
  },
  mask: {
    name: 'Mask',
    about: 'Trained: what the policy sampled by itself. The rest is context.',
    values: ({ mask }) => mask,
    tint: (value) => ({ hue: 'var(--accent)', strength: 0.45 * value }),
    legend: () => [
      ['context', 0],
      ['sampled', 1],
    ],
  },
  version: {
    name: 'Policy version',
    about: 'The version of the policy that sampled the token.',
    values: ({ versions }) => versions,
    tint: (value) => ({ hue: `var(--run${value % 6})`, strength: 0.6 }),
    legend: () => [],
  },
  difference: {
    name: 'Engine–trainer difference',
    about: 'Log-probability at the trainer less that at the engine. Negative is underlined. Rounding only is good.',
    values: ({ trainerLogprobs, logprobs }) => trainerLogprobs?.map((value, i) => value - logprobs[i]!) ?? null,
    missing: 'No log-probabilities of the trainer: no step trained this rollout, or they were not kept.',
    tint: signs,
    legend: ends(' nats'),
  },
} as const satisfies Readonly<Record<string, TokenMeasure>>;
type MeasureName = keyof typeof MEASURES;
const NAMES = Object.keys(MEASURES) as readonly MeasureName[];

/** Spaces only where they would not be seen. */
function visible(piece: string): string {
  return piece
    .replaceAll(/[^\P{C}\n\t]/gu, (mark) => `\\u{${mark.codePointAt(0)!.toString(16)}}`)
    .replaceAll(/^ +$| +$|(?<= ) | (?= )/g, (run) => '␣'.repeat(run.length))
    .replaceAll('\t', '⇥\t')
    .replaceAll('\n', '⏎\n');
}

interface Block {
  readonly start: number;
  readonly end: number;
  /** Null in context. */
  readonly turn: number | null;
  /** Whether it is the first of its turn or context. */
  readonly first: boolean;
}

/** Cuts where turns begin and end, and after a line break or 160 tokens. */
function blocksOf({ pieces, turns }: TokenRow): readonly Block[] {
  const parts: { start: number; end: number; turn: number | null }[] = [];
  let done = 0;
  for (const { index, start, end } of turns) {
    if (start > done) parts.push({ start: done, end: start, turn: null });
    parts.push({ start, end, turn: index });
    done = end;
  }
  if (done < pieces.length) parts.push({ start: done, end: pieces.length, turn: null });
  return parts.flatMap(({ start, end, turn }) => {
    const blocks: Block[] = [];
    for (let from = start; from < end; ) {
      let to = Math.min(end, from + 160);
      for (let i = from + 60; i < to; i++) if (pieces[i]?.endsWith('\n')) to = i + 1;
      blocks.push({ start: from, end: to, turn, first: from === start });
      from = to;
    }
    return blocks;
  });
}

interface RowProps {
  readonly row: TokenRow;
  readonly number: number;
  readonly measure: MeasureName;
  readonly most: number;
}

interface BlockProps extends RowProps {
  readonly block: Block;
  /** The measure of each token of the row. */
  readonly all: readonly number[] | null;
}

const nearness = new WeakMap<Element, (near: boolean) => void>();
const nearScreen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) nearness.get(target)?.(isIntersecting);
  },
  { rootMargin: '800px' },
);

/** Far from the screen it is one text, which has the same size and can be found. */
const TokenBlock = memo(({ row, number: rowNumber, measure, most, block, all }: BlockProps) => {
  const place = useRef<HTMLDivElement>(null);
  const [near, setNear] = useState(false);
  useEffect(() => {
    const element = place.current!;
    nearness.set(element, setNear);
    nearScreen.observe(element);
    return () => nearScreen.unobserve(element);
  }, []);
  const { tint } = MEASURES[measure] as TokenMeasure;
  const tokenAt = (piece: string, offset: number) => {
    const i = block.start + offset;
    const own = row.mask[i] === 1;
    const { hue, strength, negative } = own && all !== null ? tint(all[i]!, most) : NO_TINT;
    const style = strength === 0 ? {} : { style: { '--hue': hue, '--strength': `${Math.round(Math.min(1, strength) * 62)}%` } };
    return (
      <span key={i} data-i={i} class={`t${own ? ' own' : ''}${negative ? ' negative' : ''}`} {...style}>
        {visible(piece)}
      </span>
    );
  };
  const pieces = row.pieces.slice(block.start, block.end);
  const id = block.first && block.turn !== null ? `tokens-${rowNumber}-${block.turn}` : undefined;
  return (
    <div ref={place} class={block.turn === null ? 'block context' : 'block'} id={id}>
      {block.first && <span class="part muted small">{block.turn === null ? 'context' : `turn ${block.turn}`}</span>}
      {near ? pieces.map(tokenAt) : pieces.map(visible).join('')}
    </div>
  );
});

interface Place {
  readonly row: number;
  readonly i: number;
}

function Inspector({ row, i }: { readonly row: TokenRow; readonly i: number }) {
  const own = row.mask[i] === 1;
  const engine = row.logprobs[i]!;
  const advantage = row.advantages?.[i];
  const trainer = row.trainerLogprobs?.[i];
  const facts = own
    ? [
        `log-probability ${number(engine)} nats (${(100 * Math.exp(engine)).toPrecision(3)} %)`,
        `advantage ${advantage === undefined ? 'none' : number(advantage)}`,
        `version ${row.versions[i]}`,
        `trainer ${trainer === undefined ? 'not kept' : `${number(trainer)} nats, difference ${number(trainer - engine)}`}`,
      ]
    : ['context: not sampled, not trained'];
  return (
    <>
      <code class="piece">{JSON.stringify(row.pieces[i])}</code>{' '}
      {[`id ${row.ids[i]}`, `token ${whole(i)} of ${whole(row.ids.length)}`, ...facts].join(' · ')}
    </>
  );
}

function Row({
  row,
  number: rowNumber,
  measure,
  most,
  place,
  show,
}: RowProps & { readonly place: Place | undefined; show(place: Place): void }) {
  const blocks = useMemo(() => blocksOf(row), [row]);
  const all = useMemo(() => MEASURES[measure].values(row), [row, measure]);
  const over = ({ target }: Event): void => {
    const i = (target as HTMLElement).dataset['i'];
    if (i !== undefined) show({ row: rowNumber, i: Number(i) });
  };
  const pressed = (event: KeyboardEvent): void => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const i = Math.max(0, Math.min(row.ids.length - 1, (place?.row === rowNumber ? place.i : -1) + by));
    show({ row: rowNumber, i });
    event.currentTarget instanceof HTMLElement &&
      event.currentTarget.querySelector(`[data-i="${i}"]`)?.scrollIntoView({ block: 'nearest' });
  };
  return (
    <div
      class="tokens"
      role="group"
      tabIndex={0}
      aria-label={`Tokens of row ${rowNumber + 1}; the arrow keys go through them`}
      onMouseOver={over}
      onClick={over}
      onKeyDown={pressed}
    >
      {blocks.map((block) => (
        <TokenBlock key={block.start} row={row} number={rowNumber} measure={measure} most={most} block={block} all={all} />
      ))}
    </div>
  );
}

export function Tokens({ view: { rows, note } }: { readonly view: TokenView }) {
  const [measure, choose] = useState<MeasureName>('logprob');
  const [place, show] = useState<Place>();
  const { about, values, legend, missing, tint } = MEASURES[measure] as TokenMeasure;
  const most = useMemo(() => {
    const sampled = rows.flatMap((row) => (values(row) ?? []).filter((_, i) => row.mask[i] === 1));
    return sampled.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0);
  }, [rows, values]);
  const versions = [...new Set(rows.flatMap((row) => row.versions.filter((_, i) => row.mask[i] === 1)))].sort((a, b) => a - b);
  const scale = measure === 'version' ? versions.map((version) => [`version ${version}`, version] as const) : legend(most);
  const isMissing = rows.every((row) => values(row) === null);
  const shown = place === undefined ? undefined : rows[place.row];
  return (
    <section aria-label="Tokens">
      {note !== null && <Empty>{note}</Empty>}
      {rows.length > 0 && (
        <div class="sticky">
          <div class="row" role="radiogroup" aria-label="Colour tokens by">
            {NAMES.map((name) => (
              <label key={name} class={`chip ${rows.every((row) => MEASURES[name].values(row) === null) ? 'off' : ''}`}>
                <input type="radio" name="measure" checked={measure === name} onChange={() => choose(name)} />{' '}
                {MEASURES[name].name}
              </label>
            ))}
          </div>
          <p class="row legend small">
            <span class="muted">{isMissing ? missing : about}</span>
            {!isMissing &&
              scale.map(([label, value]) => {
                const { hue, strength } = tint(value, most);
                return (
                  <span key={label} class="num">
                    <i class="key" style={{ '--hue': hue, '--strength': `${Math.round(strength * 62)}%` }} /> {label}
                  </span>
                );
              })}
          </p>
          <p class="inspector num small" role="status">
            {shown && place ? (
              <Inspector row={shown} i={place.i} />
            ) : (
              <span class="muted">Point at a token, or press → in the text, to see its values.</span>
            )}
          </p>
        </div>
      )}
      {rows.map((row, n) => (
        <section key={n} aria-label={`Training row ${n + 1}`}>
          <p class="row small">
            <b>Row {n + 1}</b>
            <span class="muted num">{`${plural(row.ids.length, 'token')}, ${whole(row.mask.reduce((sum, own) => sum + own, 0))} sampled · temperature ${row.temperature}`}</span>
            {row.turns.map(({ index }) => (
              <button
                key={index}
                type="button"
                class="quiet"
                onClick={() => document.getElementById(`tokens-${n}-${index}`)?.scrollIntoView({ block: 'center' })}
              >
                turn {index}
              </button>
            ))}
          </p>
          <Row row={row} number={n} measure={measure} most={most} place={place} show={show} />
        </section>
      ))}
    </section>
  );
}
