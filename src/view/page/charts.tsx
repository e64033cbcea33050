/** The numbers of runs over their steps: one chart for each measure, all runs in it, with the same step marked in every chart. */
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import uPlot from 'uplot';
import type { RunEvent, StepReport } from '../../core/events.ts';
import { number, percent, seconds } from './parts.tsx';

interface Point {
  readonly step: number;
  /** One for each name of the measure. */
  readonly values: readonly (number | undefined)[];
  /** 95 % interval of the first value. */
  readonly band?: readonly [low: number, high: number] | null | undefined;
}

interface Measure {
  readonly title: string;
  readonly about: string;
  readonly names: readonly string[];
  readonly say: (value: number) => string;
  /** In per cent; `whole`: of what can at most be 100 %. */
  readonly share?: 'whole' | 'part';
  readonly point: (event: RunEvent) => Point | undefined;
}

type Named = Readonly<Record<string, (report: StepReport) => number | undefined>>;

/** `band`: of the first value. */
function ofSteps(
  title: string,
  about: string,
  say: Measure['say'],
  named: Named,
  more: Pick<Measure, 'share'> & { readonly band?: (report: StepReport) => Point['band'] } = {},
): Measure {
  const point: Measure['point'] = (event) => {
    if (event.type !== 'step-end') return undefined;
    return { step: event.step, values: Object.values(named).map((value) => value(event)), band: more.band?.(event) };
  };
  return { title, about, say, names: Object.keys(named), ...more, point };
}

const tokens = (n: number): string => `${n >= 10_000 ? `${Math.round(n / 1000)}k` : number(n)} tokens`;
const nats = (n: number): string => `${number(n)} nats`;

const MEASURES: readonly Measure[] = [
  {
    title: 'Held-out success',
    about: 'Tasks solved that are never trained. Band: 95 % interval.',
    names: ['success'],
    say: percent,
    share: 'whole',
    point: (event) =>
      event.type === 'eval-end' ? { step: event.step, values: [event.score.success], band: event.score.ci } : undefined,
  },
  ofSteps(
    'Training reward',
    'Mean over the rollouts of each step. Band: 95 % interval.',
    number,
    { reward: ({ reward }) => reward },
    { band: ({ rewardCi }) => rewardCi },
  ),
  ofSteps(
    'Groups with signal',
    'Groups whose rollouts got different rewards. Only they teach.',
    percent,
    { 'with signal': ({ groups, groupsWithoutSignal }) => (groups === 0 ? undefined : 1 - groupsWithoutSignal / groups) },
    { share: 'whole' },
  ),
  ofSteps('Policy shift (KL)', 'How far the policy moved from the one that sampled.', nats, {
    KL: ({ offPolicyKl }) => offPolicyKl,
  }),
  ofSteps(
    'Clipped tokens',
    'Trained tokens whose probability changed too much.',
    percent,
    { clipped: ({ clipped }) => clipped },
    { share: 'part' },
  ),
  ofSteps('Engine–trainer difference', 'In log-probability of the same token. Should be rounding only.', nats, {
    mean: (report) => report.meanDifference,
    largest: (report) => report.largestDifference,
  }),
  ofSteps('Loss', 'What the step minimised. Its level means little in RL.', number, { loss: ({ loss }) => loss }),
  ofSteps('Gradient norm', 'Size of the update before clipping. Spikes are trouble.', number, {
    norm: ({ gradNorm }) => gradNorm,
  }),
  ofSteps('Tokens per step', 'Sampled since the last step, and trained in it.', tokens, {
    sampled: (report) => report.sampledTokens,
    trained: (report) => report.trainedTokens,
  }),
  ofSteps('Time per step', 'Rollouts, training and saving; and rollouts alone.', seconds, {
    all: (report) => report.rolloutSeconds + report.trainSeconds + report.saveSeconds,
    rollouts: (report) => report.rolloutSeconds,
  }),
  {
    title: 'Supervised loss',
    about: 'Mean over taught tokens, and on conversations left out.',
    names: ['training', 'validation'],
    say: nats,
    point: (event) => (event.type === 'sft-step' ? { step: event.step, values: [event.loss, event.validationLoss] } : undefined),
  },
];

interface ChartRun {
  readonly name: string;
  /** Its place among all runs, which decides its colour and dashes. */
  readonly place: number;
  readonly events: readonly RunEvent[];
}

const HEIGHT = 140;
const DASHES: readonly (readonly number[])[] = [[], [7, 3], [2, 3], [9, 3, 2, 3], [5, 2], [1, 2]];
const colourOf = (place: number): string => `var(--run${place % 6})`;
const dashOf = (place: number): number[] => [...(DASHES[place % 6] ?? [])];

/** The line of a run, as in the charts. */
export function Swatch({ place }: { readonly place: number }) {
  return (
    <svg class="swatch" viewBox="0 0 22 8" aria-hidden="true">
      <line
        x1="1"
        x2="21"
        y1="4"
        y2="4"
        stroke-width="2.5"
        style={{ stroke: colourOf(place) }}
        stroke-dasharray={dashOf(place).join(' ')}
      />
    </svg>
  );
}

/** A canvas does not know CSS variables. */
function resolved(colour: string, alpha = 1): string {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `color-mix(in srgb, ${colour} ${100 * alpha}%, transparent)`;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

interface Series {
  readonly run: ChartRun;
  readonly points: ReadonlyMap<number, Point>;
}

/** Everything that is drawn, so that intervals are in sight too; a flat line gets some room. */
function rangeOf(measure: Measure, series: readonly Series[]): readonly [number, number] {
  if (measure.share === 'whole') return [0, 1];
  const all = series.flatMap(({ points }) => [...points.values()].flatMap(({ values, band }) => [...values, ...(band ?? [])]));
  const known = all.filter((value) => value !== undefined);
  const low = Math.min(0, ...known);
  const high = Math.max(...known);
  const room = (high - low) * 0.06 || Math.abs(high) || 1;
  return [low === 0 ? 0 : low - room, high + room];
}

/** uPlot's own bands end where a run has no value at another run's step. */
function drawBands({ ctx, bbox, valToPos }: uPlot, series: readonly Series[]): void {
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { run, points } of series) {
    const edges = [...points.values()].flatMap(({ step, band }) => (band ? [{ step, band }] : []));
    ctx.beginPath();
    for (const { step, band } of edges) ctx.lineTo(valToPos(step, 'x', true), valToPos(band[1], 'y', true));
    for (const { step, band } of edges.toReversed()) ctx.lineTo(valToPos(step, 'x', true), valToPos(band[0], 'y', true));
    ctx.fillStyle = resolved(colourOf(run.place), 0.16);
    ctx.fill();
  }
  ctx.restore();
}

/** `now` gives the series as they are when the chart is drawn. */
function optionsOf(
  measure: Measure,
  now: () => readonly Series[],
  width: number,
  hover: (index: number | null) => void,
): uPlot.Options {
  const line = resolved('var(--line)');
  const muted = resolved('var(--muted)');
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
  const tick = (value: number): string => (measure.share ? `${number(100 * value)} %` : number(value));
  return {
    width,
    height: HEIGHT,
    padding: [8, 6, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: 'steps' }, drag: { x: false, y: false }, y: false },
    scales: { x: { time: false }, y: { range: () => [...rangeOf(measure, now())] as [number, number] } },
    axes: [
      { ...axis, grid: { show: false }, size: 24, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] },
      { ...axis, size: 48, values: (_, ticks) => ticks.map(tick) },
    ],
    series: [
      {},
      ...now().flatMap(({ run }) =>
        measure.names.map((_, i) => ({
          spanGaps: true,
          dash: dashOf(run.place),
          width: i === 0 ? 2 : 1,
          stroke: resolved(colourOf(run.place), i === 0 ? 1 : 0.65),
        })),
      ),
    ],
    hooks: { drawAxes: [(plot) => drawBands(plot, now())], setCursor: [({ cursor }) => hover(cursor.idx ?? null)] },
  };
}

function Chart({ measure, series }: { readonly measure: Measure; readonly series: readonly Series[] }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [hovered, hover] = useState<number | null>(null);
  const steps = useMemo(() => [...new Set(series.flatMap(({ points }) => [...points.keys()]))].sort((a, b) => a - b), [series]);
  const data = useMemo(() => {
    const columns = series.flatMap(({ points }) =>
      measure.names.map((_, i) => steps.map((step) => points.get(step)?.values[i] ?? null)),
    );
    return [steps, ...columns] as uPlot.AlignedData;
  }, [steps, series, measure]);
  const latest = useRef(series);
  latest.current = series;
  const shape = series.map(({ run }) => run.place).join();
  // Made again for other runs only: new data go into the chart that is there.
  useEffect(() => {
    const target = place.current!;
    const dark = matchMedia('(prefers-color-scheme: dark)');
    const make = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(
        optionsOf(measure, () => latest.current, target.clientWidth, hover),
        data,
        target,
      );
    };
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: target.clientWidth, height: HEIGHT }));
    make();
    resized.observe(target);
    dark.addEventListener('change', make);
    return () => {
      resized.disconnect();
      dark.removeEventListener('change', make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, measure]);
  useEffect(() => plot.current?.setData(data), [data]);
  const step = hovered === null ? undefined : steps[hovered];
  const said = series.map(({ run, points }) => {
    const point = step === undefined ? [...points.values()].at(-1) : points.get(step);
    const values = measure.names.flatMap((name, i) => {
      const value = point?.values[i];
      return value === undefined ? [] : `${measure.names.length > 1 ? `${name} ` : ''}${measure.say(value)}`;
    });
    const band = point?.band ? ` (${measure.say(point.band[0])} to ${measure.say(point.band[1])})` : '';
    return { run, text: values.length === 0 ? '—' : values.join(' · ') + band };
  });
  const where = step === undefined ? 'latest' : `step ${step}`;
  return (
    <figure class="chart">
      <figcaption>
        <div class="row between">
          <h3>{measure.title}</h3>
          <span class="muted small num">{where}</span>
        </div>
        <p class="muted">{measure.about}</p>
        <p class="values num">
          {said.map(({ run, text }) => (
            <span key={run.place}>
              <Swatch place={run.place} /> {text}
            </span>
          ))}
        </p>
      </figcaption>
      <div
        ref={place}
        role="img"
        aria-label={`${measure.title}, ${said.map(({ run, text }) => `${run.name}: ${text}`).join('; ')}`}
      />
    </figure>
  );
}

/** Charts of what the runs measured; what none of them did has no chart. */
export function Charts({ runs }: { readonly runs: readonly ChartRun[] }) {
  const charts = useMemo(
    () =>
      MEASURES.flatMap((measure) => {
        const series = runs.map((run) => {
          const points = run.events.flatMap((event) => measure.point(event) ?? []);
          const told = points.filter(({ values }) => values.some((value) => value !== undefined));
          return { run, points: new Map(told.map((point) => [point.step, point])) };
        });
        const withPoints = series.filter(({ points }) => points.size > 0);
        return withPoints.length === 0 ? [] : [{ measure, series: withPoints }];
      }),
    [runs],
  );
  return (
    <div class="charts">
      {charts.map(({ measure, series }) => (
        <Chart key={measure.title} measure={measure} series={series} />
      ))}
    </div>
  );
}
