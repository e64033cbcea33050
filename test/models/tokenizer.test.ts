/** The committed tokenizer: made by the committed script, lossless, and the same ids piece by piece as for the whole. */
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';
import { renderConversation } from '../../models/conversation-text.ts';
import { CLEAN, drawConversation, NOISY, PretrainingData } from '../../models/pretraining-data.ts';
import { seededRandom } from '../../models/random.ts';
import { trainTokenizer } from '../../models/train-tokenizer.ts';
import { createRenderer } from '../../src/tokens/renderer.ts';
import { loadTokenizer } from '../../src/tokens/tokenizer.ts';

const base = fileURLToPath(new URL('../../models/base', import.meta.url));
const tokenizer = await loadTokenizer(base);

function committed(name: string): unknown {
  return JSON.parse(readFileSync(`${base}/${name}`, 'utf8'));
}

describe('the committed tokenizer', () => {
  it('is what train-tokenizer.ts makes', () => {
    const made = trainTokenizer(1);
    expect(committed('tokenizer.json')).toEqual(made.tokenizer);
    expect(committed('tokenizer_config.json')).toEqual(made.tokenizerConfig);
  });

  it('gives generated transcripts back as they were', () => {
    const random = seededRandom(21);
    for (let i = 0; i < 300; i++) {
      const conversation = drawConversation(random, i % 2 === 0 ? CLEAN : NOISY);
      const pieces = renderConversation(conversation).map((piece) => piece.text);
      const whole = tokenizer.encodeRendered(pieces.join(''));
      expect(tokenizer.decode(whole)).toBe(pieces.join(''));
      expect(pieces.flatMap((text) => [...tokenizer.encodeRendered(text)])).toEqual([...whole]);
    }
  });
});

describe('the chat template', () => {
  it('lets conversations be extended turn by turn', () => {
    expect(createRenderer(tokenizer).extends).toBe(true);
  });

  it('gives the prompts that pretraining rows begin with', () => {
    const renderer = createRenderer(tokenizer);
    const random = seededRandom(22);
    for (const row of new PretrainingData(tokenizer, 22).draw(CLEAN, 50)) {
      const { messages, tools } = drawConversation(random, CLEAN);
      const prompt = renderer.open(messages.slice(0, 2), tools);
      expect([...row.tokens.slice(0, prompt.length)]).toEqual([...prompt]);
      expect(row.mask.indexOf(1)).toBe(prompt.length);
    }
  });
});

describe('pretraining rows', () => {
  const rows = new PretrainingData(tokenizer, 23).draw(NOISY, 64);

  it('train what the assistant says, its end of turn included, and nothing else', () => {
    for (const row of rows) {
      const trained = tokenizer.decode(row.tokens.filter((_, index) => row.mask[index] === 1));
      const text = tokenizer.decode(row.tokens);
      const said = [...text.matchAll(/<\|im_start\|>assistant\n(.*?<\|im_end\|>)/gs)].map((match) => match[1]).join('');
      expect(trained).toBe(said);
    }
  });

  it('weigh every trained token of a batch the same, one in sum', () => {
    const trained = rows.reduce((sum, row) => sum + row.mask.reduce((a, b) => a + b, 0), 0);
    for (const row of rows) expect(row.weight).toBeCloseTo(1 / trained, 12);
  });

  it('fit into half of the context', () => {
    const long = new PretrainingData(tokenizer, 24).draw(
      { ...NOISY, shop: { ...NOISY.shop, guess: 0, wrongItem: 1, giveUp: 0 } },
      500,
    );
    expect(Math.max(...long.map((row) => row.tokens.length))).toBeLessThan(256);
  });
});
