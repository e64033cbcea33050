/**
 * Writes the catalogue and the tasks of the shop for a real model: `node examples/llm-shop/make-tasks.ts`. Same script, same files; a test
 * compares. Held-out questions are about items whose words occur in no training question. Price and stock always differ, so that an answer
 * shows which of them was read.
 */
import { writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { integer, pick, type Random, seededRandom } from '../../models/random.ts';

const TRAINING = {
  prefix: 'train',
  seed: 17,
  tasks: 800,
  words: [
    'red blue green wooden small large old silver plastic round heavy yellow copper square striped folding tall narrow velvet rusty',
    'lamp chair vase hammer clock basket mirror kettle bucket ladder table bottle candle carpet drum fan hat kite mug pillow',
  ],
} as const;
const HELD_OUT = {
  prefix: 'held-out',
  seed: 18,
  tasks: 128,
  words: [
    'purple golden leather tiny giant modern cotton broken bright soft',
    'bench cabinet curtain desk hook jug ladle plate shelf towel',
  ],
} as const;
const QUESTIONS = {
  price: [
    (item: string) => `How much is the ${item}?`,
    (item: string) => `What is the price of the ${item}?`,
    (item: string) => `What does the ${item} cost?`,
  ],
  stock: [
    (item: string) => `How many of the ${item} are in stock?`,
    (item: string) => `How many of the ${item} are left?`,
    (item: string) => `What is the stock of the ${item}?`,
  ],
} as const;

interface Item {
  readonly name: string;
  readonly price: number;
  readonly stock: number;
}

/** File name → text. */
export function makeLlmShopFiles(): Readonly<Record<string, string>> {
  const training = splitOf(TRAINING);
  const heldOut = splitOf(HELD_OUT);
  const items = [...training.items, ...heldOut.items].map(
    ({ name, price, stock }) => `${JSON.stringify(name)}:${JSON.stringify({ price, stock })}`,
  );
  return {
    'catalog.json': `{\n${items.toSorted().join(',\n')}\n}\n`,
    'train.jsonl': training.lines,
    'held-out.jsonl': heldOut.lines,
  };
}

/** Every item can be asked about twice: for its price and for its stock. */
function splitOf({ prefix, seed, tasks, words: [adjectives, nouns] }: typeof TRAINING | typeof HELD_OUT) {
  const random = seededRandom(seed);
  const items = adjectives.split(' ').flatMap((one) => nouns.split(' ').map((noun) => drawItem(random, `${one} ${noun}`)));
  const asked = items.flatMap((item) => (['price', 'stock'] as const).map((kind) => ({ item, kind })));
  const lines = asked
    .map((one) => ({ ...one, place: random() }))
    .toSorted((a, b) => a.place - b.place)
    .slice(0, tasks)
    .map(({ item, kind }, i) => {
      const id = `${prefix}-${String(i + 1).padStart(4, '0')}`;
      return JSON.stringify({ id, prompt: pick(random, QUESTIONS[kind])(item.name), answer: item[kind], metadata: { kind } });
    });
  return { items, lines: `${lines.join('\n')}\n` };
}

function drawItem(random: Random, name: string): Item {
  const price = integer(random, 10, 99);
  for (;;) {
    const stock = integer(random, 2, 99);
    if (stock !== price) return { name, price, stock };
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const [name, text] of Object.entries(makeLlmShopFiles())) writeFileSync(new URL(name, import.meta.url), text);
}
