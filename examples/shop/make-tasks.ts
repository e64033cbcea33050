/**
 * Writes the shop's catalogue and its tasks: `node examples/shop/make-tasks.ts`. Same script, same files; a test compares.
 *
 * Training and held-out tasks are about different items with different prices and stocks, and neither are about items that the
 * base policy was pretrained on.
 */
import { writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { pick, seededRandom } from '../../models/random.ts';
import { askAbout, type Item, makeCatalog } from '../../models/shop-domain.ts';

const TRAINING = { seed: 7001, items: 1_000, tasks: 2_000, prefix: 'train' };
const HELD_OUT = { seed: 9001, items: 200, tasks: 500, prefix: 'held-out' };

/** File name → text. */
export function makeShopFiles(): Readonly<Record<string, string>> {
  const training = makeCatalog(TRAINING.seed, 'training', TRAINING.items);
  const heldOut = makeCatalog(HELD_OUT.seed, 'held-out', HELD_OUT.items);
  return {
    'catalog.json': catalogText([...training, ...heldOut]),
    'train.jsonl': taskLines(training, TRAINING),
    'held-out.jsonl': taskLines(heldOut, HELD_OUT),
  };
}

/** One item per line, sorted, so that a line does not tell which split its item is in. */
function catalogText(items: readonly Item[]): string {
  const lines = items.map(({ name, price, stock }) => `${JSON.stringify(name)}:${JSON.stringify({ price, stock })}`);
  return `{\n${lines.toSorted().join(',\n')}\n}\n`;
}

/** No question is asked twice. */
function taskLines(items: readonly Item[], settings: typeof TRAINING): string {
  const random = seededRandom(settings.seed + 1);
  const lines = new Map<string, string>();
  while (lines.size < settings.tasks) {
    const { text, answer, kind } = askAbout(random, pick(random, items));
    const id = `${settings.prefix}-${String(lines.size + 1).padStart(4, '0')}`;
    if (!lines.has(text)) lines.set(text, JSON.stringify({ id, prompt: text, answer, metadata: { kind } }));
  }
  return `${[...lines.values()].join('\n')}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  for (const [name, text] of Object.entries(makeShopFiles())) writeFileSync(new URL(name, import.meta.url), text);
}
