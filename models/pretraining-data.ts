/**
 * Batches to pretrain on: generated conversations as training rows, the policy's own words masked in.
 *
 * Every row weighs 1 / (trained tokens of the batch): the summed loss is then the mean over trained tokens.
 */
import type { Message, Sample } from '../src/core/types.ts';
import type { Tokenizer } from '../src/tokens/tokenizer.ts';
import { renderConversation } from './conversation-text.ts';
import { type Random, seededRandom } from './random.ts';
import { copyExercise, demonstrate, type Faults } from './shop-demonstrations.ts';
import { askAbout, drawItem } from './shop-domain.ts';

/** Share of copying exercises among the conversations. */
const COPYING = 0.25;

/** Bounds the memory that remembered encodings take; some thousand distinct pieces come back all the time. */
const ENCODINGS_KEPT = 50_000;

export function drawConversation(random: Random, faults: Faults): readonly Message[] {
  if (random() < COPYING) return copyExercise(random);
  return demonstrate(random, askAbout(random, drawItem(random, 'pretraining')), faults);
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
  #encode(messages: readonly Message[]): Row {
    const pieces = renderConversation(messages);
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
