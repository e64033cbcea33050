/**
 * The shop agent played locally, without gateway or grader: measures a base policy while it is being made.
 *
 * Does what examples/shop/agent.ts does, on a catalogue in memory. Held-out questions for measuring are drawn here, from another
 * catalogue than the example's, so that the example's own held-out tasks stay unseen until a run reports on them.
 */
import type { Engine } from '../src/core/policy.ts';
import type { Message } from '../src/core/types.ts';
import type { Renderer } from '../src/tokens/renderer.ts';
import { pick, seededRandom } from './random.ts';
import { askAbout, type Item, makeCatalog, onlyNumber, type Question, runTool, SYSTEM_PROMPT, TOOLS } from './shop-domain.ts';

const MAX_TURNS = 4;
const MAX_TOKENS_PER_TURN = 64;

/** What one rollout did. */
export interface Attempt {
  readonly question: Question;
  readonly calls: readonly { readonly name: string; readonly arguments: string; readonly result: string }[];
  /** Absent when the turns ran out first. */
  readonly final: string | undefined;
}

export interface Shop {
  readonly catalog: ReadonlyMap<string, Item>;
  readonly questions: readonly Question[];
}

export function heldOutShop(seed: number, size: number): Shop {
  const items = makeCatalog(seed, 'held-out', 200);
  const random = seededRandom(seed + 1);
  return {
    catalog: new Map(items.map((item) => [item.name, item])),
    questions: Array.from({ length: size }, () => askAbout(random, pick(random, items))),
  };
}

/** One attempt at each question, all at once. */
export function attemptAll(engine: Engine, renderer: Renderer, shop: Shop, temperature: number): Promise<readonly Attempt[]> {
  return Promise.all(
    shop.questions.map((question, index) => attempt(engine, renderer, shop.catalog, question, temperature, index)),
  );
}

async function attempt(
  engine: Engine,
  renderer: Renderer,
  catalog: Shop['catalog'],
  question: Question,
  temperature: number,
  seed: number,
): Promise<Attempt> {
  const opening: Message[] = [
    { role: 'system', content: SYSTEM_PROMPT },
    { role: 'user', content: question.text },
  ];
  const sampling = { temperature, topP: 1, topK: 0, maxTokens: MAX_TOKENS_PER_TURN };
  const calls: { name: string; arguments: string; result: string }[] = [];
  let promptIds = renderer.open(opening, TOOLS);
  for (let turn = 0; turn < MAX_TURNS; turn++) {
    const sampled = await engine.sample({ promptIds, sampling, stopIds: renderer.stopIds, seed: seed * MAX_TURNS + turn });
    const response = renderer.readResponse(sampled.ids);
    if (response.toolCalls.length === 0) return { question, calls, final: response.content ?? '' };

    const results: Message[] = [];
    for (const call of response.toolCalls) {
      const result = runTool(catalog, call.name, call.arguments);
      calls.push({ ...call, result });
      results.push({ role: 'tool', tool_call_id: `call_${calls.length}`, content: result });
    }
    promptIds = renderer.extend({ promptIds, sampledIds: sampled.ids, stopReason: sampled.stopReason }, results)!;
  }
  return { question, calls, final: undefined };
}

export function isRight({ question, final }: Attempt): boolean {
  return final !== undefined && onlyNumber(final) === question.answer;
}

export function successRate(attempts: readonly Attempt[]): number {
  return attempts.filter(isRight).length / attempts.length;
}

/** Names the first thing that went wrong. */
export function describeAttempt(attempt: Attempt): string {
  const { question, calls, final } = attempt;
  const { item, kind, quantity } = question;
  if (isRight(attempt)) return 'right';
  if (final === undefined) return 'no answer';
  const [first] = calls;
  if (first === undefined) return final.includes('tool_call') ? 'malformed tool call' : 'guess without a tool';
  if (first.name !== 'lookup') return 'calculator first';
  if (!calls.some((call) => call.result.startsWith('{"price"'))) return 'wrong item';
  if (kind !== 'total') {
    const other = kind === 'price' ? item.stock : item.price;
    return onlyNumber(final) === other ? 'wrong field' : 'wrong number after the lookup';
  }
  const sum = calls.find((call) => call.name === 'calculator');
  if (sum === undefined) return 'no calculator';
  return sum.arguments.includes(`"${quantity}*${item.price}"`) ? 'wrong number after the calculator' : 'wrong expression';
}

/** Share of each ending, commonest first. */
export function describeAll(attempts: readonly Attempt[]): readonly (readonly [string, number])[] {
  const counts = new Map<string, number>();
  for (const attempt of attempts) {
    const ending = describeAttempt(attempt);
    counts.set(ending, (counts.get(ending) ?? 0) + 1);
  }
  return [...counts].map(([ending, count]) => [ending, count / attempts.length] as const).toSorted((a, b) => b[1] - a[1]);
}
