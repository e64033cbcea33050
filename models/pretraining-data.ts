/**
 * Batches to pretrain on: generated conversations as training rows, the policy's own words masked in.
 *
 * Every row weighs 1 / (trained tokens of the batch): the summed loss is then the mean over trained tokens.
 */
import type { Sample } from '../src/core/types.ts';
import type { Tokenizer } from '../src/tokens/tokenizer.ts';
import { type Conversation, renderConversation } from './conversation-text.ts';
import { CLEAN_CLERK, type ClerkFaults, demonstrateClerk, demonstrateCustomer, NOISY_CLERK } from './desk-demonstrations.ts';
import { type Random, seededRandom } from './random.ts';
import { CLEAN_SHOP, copyExercise, demonstrate, NOISY_SHOP, type ShopFaults } from './shop-demonstrations.ts';
import { askAbout, drawItem, TOOLS } from './shop-domain.ts';
import { CLEAN_TRIAGE, demonstrateTriage, NOISY_TRIAGE, type TriageFaults } from './triage-demonstrations.ts';

/** How often each kind of mistake is shown, by example. */
export interface Faults {
  readonly shop: ShopFaults;
  readonly triage: TriageFaults;
  readonly clerk: ClerkFaults;
}

export const CLEAN: Faults = { shop: CLEAN_SHOP, triage: CLEAN_TRIAGE, clerk: CLEAN_CLERK };
export const NOISY: Faults = { shop: NOISY_SHOP, triage: NOISY_TRIAGE, clerk: NOISY_CLERK };

/** Share of each kind of conversation. The shop is the hardest to learn: the others must not crowd it out. */
const SHARES = { shop: 1 / 2, copying: 1 / 6, triage: 1 / 8, clerk: 1 / 8, customer: 1 / 12 } as const;

/** Bounds the memory that remembered encodings take; some thousand distinct pieces come back all the time. */
const ENCODINGS_KEPT = 50_000;

export function drawConversation(random: Random, faults: Faults): Conversation {
  switch (drawKind(random)) {
    case 'shop':
      return { messages: demonstrate(random, askAbout(random, drawItem(random, 'pretraining')), faults.shop), tools: TOOLS };
    case 'copying':
      return { messages: copyExercise(random), tools: TOOLS };
    case 'triage':
      return { messages: demonstrateTriage(random, faults.triage), tools: [] };
    case 'clerk':
      return { messages: demonstrateClerk(random, faults.clerk), tools: [] };
    case 'customer':
      return { messages: demonstrateCustomer(random), tools: [] };
  }
}

function drawKind(random: Random): keyof typeof SHARES {
  let left = random();
  for (const kind of ['copying', 'triage', 'clerk', 'customer'] as const) {
    left -= SHARES[kind];
    if (left < 0) return kind;
  }
  return 'shop';
}

interface Row {
  readonly ids: readonly number[];
  readonly mask: readonly number[];
}

/** An endless stream of batches; same seed, same batches. */
export class PretrainingData {
  readonly #tokenizer: Tokenizer;
  readonly #random: Random;
  readonly #encodings = new Map<string, Int32Array>();

  constructor(tokenizer: Tokenizer, seed: number) {
    this.#tokenizer = tokenizer;
    this.#random = seededRandom(seed);
  }

  draw(faults: Faults, size: number): readonly Sample[] {
    const rows = Array.from({ length: size }, () => this.#encode(drawConversation(this.#random, faults)));
    const trainedTokens = rows.flatMap((row) => row.mask).filter((bit) => bit === 1).length;
    return rows.map((row, index) => toSample(row, 1 / trainedTokens, `pretraining-${index}`));
  }

  /** Ends with the last trained token: what follows it could only cost time. */
  #encode(conversation: Conversation): Row {
    const pieces = renderConversation(conversation);
    const end = pieces.findLastIndex((piece) => piece.trained) + 1;
    const ids: number[] = [];
    const mask: number[] = [];
    for (const piece of pieces.slice(0, end)) {
      for (const id of this.#encodePiece(piece.text)) {
        ids.push(id);
        mask.push(piece.trained ? 1 : 0);
      }
    }
    return { ids, mask };
  }

  /** Pieces meet at control tokens, so encoding them one by one gives the ids of the whole. */
  #encodePiece(text: string): Int32Array {
    const known = this.#encodings.get(text);
    if (known !== undefined) return known;
    const ids = this.#tokenizer.encodeRendered(text);
    if (this.#encodings.size < ENCODINGS_KEPT) this.#encodings.set(text, ids);
    return ids;
  }
}

function toSample({ ids, mask }: Row, weight: number, name: string): Sample {
  return {
    tokens: Int32Array.from(ids),
    mask: Uint8Array.from(mask),
    logprobs: new Float32Array(ids.length),
    // For cross-entropy these are the weights of the tokens.
    advantages: Float32Array.from(mask),
    versions: new Int32Array(ids.length),
    temperature: 1,
    weight,
    rolloutId: name,
    groupId: name,
  };
}
