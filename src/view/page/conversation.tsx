/** A rollout as a conversation, turn by turn, with the tree of its turns beside them: which one continues or forks from which, and why. */
import type { ComponentChildren } from 'preact';
import type { Message, UnansweredCall } from '../../core/types.ts';
import type { RolloutView, TurnView } from '../api.ts';
import { exported } from './data.ts';
import { Badge, Empty, number, plural, seconds, whole } from './parts.tsx';

const WHO = { system: 'System', user: 'User', assistant: 'Policy', tool: 'Tool result' } as const;

function Said({ message, cut }: { readonly message: Message; readonly cut?: boolean }) {
  const { role, content, reasoning, tool_calls: calls = [], name } = message;
  const isEmpty = (content ?? '') === '' && calls.length === 0 && !reasoning;
  return (
    <div class={`said ${role}`}>
      <span class="who">{name ? `${WHO[role]} · ${name}` : WHO[role]}</span>
      <div class="what">
        {reasoning && (
          <div class="reasoning">
            <span class="muted small">Reasoning</span>
            <div class="text">{reasoning}</div>
          </div>
        )}
        {content && <div class="text">{content}</div>}
        {calls.map((call) => (
          <div key={call.id} class="call text">
            <b>{call.function.name}</b>({call.function.arguments})
          </div>
        ))}
        {isEmpty && <span class="muted">(said nothing)</span>}
        {cut && <Badge kind="bad">✂ cut off here: no tokens left</Badge>}
      </div>
    </div>
  );
}

interface Lanes {
  readonly of: readonly number[];
  readonly spans: readonly { readonly start: number; end: number }[];
}

/** A turn stays in the lane of the turn that it continues if that lane ends there; else a new lane begins. */
function lanesOf(turns: readonly TurnView[]): Lanes {
  const of: number[] = [];
  const spans: { start: number; end: number }[] = [];
  const tips: number[] = [];
  for (const [i, turn] of turns.entries()) {
    const from = turns.findIndex(({ index }) => index === (turn.after ?? turn.fork?.from));
    const isNext = turn.after !== null && from >= 0 && tips[of[from]!] === from;
    const lane = isNext ? of[from]! : spans.push({ start: i, end: i }) - 1;
    of.push(lane);
    tips[lane] = i;
    spans[lane]!.end = i;
    if (from >= 0) spans[of[from]!]!.end = Math.max(spans[of[from]!]!.end, i);
  }
  return { of, spans };
}

const X = (lane: number): number => 9 + 14 * lane;

function Tree({
  turns,
  at,
  lanes: { of, spans },
}: {
  readonly turns: readonly TurnView[];
  readonly at: number;
  readonly lanes: Lanes;
}) {
  const turn = turns[at]!;
  const lane = of[at]!;
  const from = turns.findIndex(({ index }) => index === (turn.after ?? turn.fork?.from));
  const start = from < 0 ? lane : of[from]!;
  const px = (n: number): string => `${n}px`;
  return (
    <div class="tree" aria-hidden="true" style={{ width: px(X(spans.length)) }}>
      {spans.map(({ start: begins, end }, i) => {
        if (at < begins || at > end) return null;
        const ends = {
          top: at === begins ? px(18) : '0',
          ...(at === end ? { height: px(at === begins ? 0 : 18) } : { bottom: '0' }),
        };
        return <i key={i} style={{ left: px(X(i)), ...ends }} />;
      })}
      {start !== lane && (
        <i class="across" style={{ left: px(X(Math.min(start, lane))), width: px(Math.abs(X(lane) - X(start))) }} />
      )}
      <b class={turn.fork === null ? '' : 'fork'} style={{ left: px(X(lane)) }} />
    </div>
  );
}

const words = (cause: string): string => cause.replaceAll('_', ' ');

function Origin({ turn: { after, fork, rewritten } }: { readonly turn: TurnView }) {
  if (fork === null) return null;
  return (
    <div class="origin">
      <p class="small">
        ↳ forks from turn {fork.from}: <b>{[fork.cause, ...(fork.also ?? [])].map(words).join(', ')}</b>
        {after !== null && `; its tokens continue turn ${after}`}
      </p>
      {rewritten && (
        <div class="rewritten">
          <div>
            <span class="muted small">− was</span>
            {rewritten.was ? <Said message={rewritten.was} /> : <p class="muted">(no message)</p>}
          </div>
          <div>
            <span class="muted small">+ is</span>
            {rewritten.is ? <Said message={rewritten.is} /> : <p class="muted">(no message)</p>}
          </div>
        </div>
      )}
    </div>
  );
}

function TurnHead({ turn, children }: { readonly turn: TurnView; readonly children?: ComponentChildren }) {
  const { index, thread, role, model, policyVersion, promptTokens, sampledTokens, reward } = turn;
  const facts = [thread, role].filter((name) => name !== 'main' && name !== 'policy' && name !== 'default');
  const origin = turn.after === null || turn.fork !== null ? [] : [`continues turn ${turn.after}`];
  return (
    <header class="row between">
      <p class="row">
        <b>Turn {index}</b>
        <span class="muted num small">
          {[
            ...facts,
            ...origin,
            model ?? `version ${policyVersion}`,
            `${whole(promptTokens)} prompt + ${whole(sampledTokens)} sampled tokens`,
            seconds(turn.seconds),
          ].join(' · ')}
        </span>
        {reward !== null && <Badge>reward {number(reward)}</Badge>}
        {turn.excluded !== null && <Badge kind="warn">excluded: {turn.excluded}</Badge>}
        {!turn.trainable && turn.excluded === null && <Badge>not trained</Badge>}
        {turn.undelivered && <Badge kind="bad">no client received it</Badge>}
        {turn.formatError !== null && <Badge kind="bad">{turn.formatError}</Badge>}
        {turn.ignored.length > 0 && <Badge kind="warn">ignored: {turn.ignored.join(', ')}</Badge>}
      </p>
      {children}
    </header>
  );
}

function Unanswered({ call }: { readonly call: UnansweredCall }) {
  const why = call.failure === undefined ? 'the client gave up' : `${call.failure.code}: ${call.failure.message}`;
  return (
    <div class="notice warning text">
      △ Model call without a response after {seconds((call.endedAt - call.startedAt) / 1000)},{' '}
      {plural(call.promptTokens, 'prompt token')}: {why}
    </div>
  );
}

export function Conversation({ view, exclude }: { readonly view: RolloutView; exclude(turn: number, undo: boolean): void }) {
  const { turns, unanswered } = view;
  const lanes = lanesOf(turns);
  const missed = (before: number) =>
    unanswered.filter(({ turnsBefore }) => turnsBefore === before).map((call) => <Unanswered key={call.startedAt} call={call} />);
  if (turns.length + unanswered.length === 0) return <Empty>This rollout never called the model.</Empty>;
  return (
    <div class="conversation">
      {turns.map((turn, i) => (
        <article
          key={turn.index}
          class={turn.excluded === null ? 'turn' : 'turn excluded'}
          data-nav
          tabIndex={-1}
          aria-label={`Turn ${turn.index}`}
        >
          <Tree turns={turns} at={i} lanes={lanes} />
          <div>
            <TurnHead turn={turn}>
              {exported === null && (
                <button type="button" class="quiet" onClick={() => exclude(turn.index, turn.excluded !== null)}>
                  {turn.excluded === null ? 'Exclude…' : 'Take back…'}
                </button>
              )}
            </TurnHead>
            <Origin turn={turn} />
            {i === 0 && turn.tools.length > 0 && (
              <details>
                <summary class="muted small">
                  {plural(turn.tools.length, 'tool')} offered: {turn.tools.map((tool) => tool.function.name).join(', ')}
                </summary>
                <pre class="text code">{JSON.stringify(turn.tools, null, 2)}</pre>
              </details>
            )}
            {missed(i)}
            {turn.prompt.map((message, n) => (
              <Said key={n} message={message} />
            ))}
            <Said message={turn.response} cut={turn.stopReason === 'length'} />
          </div>
        </article>
      ))}
      {missed(turns.length)}
    </div>
  );
}
