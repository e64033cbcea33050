/**
 * The tokens of a rollout as training sees them: the rows that `stitch` makes, with the advantages that an export of the rollout has, and the
 * text of each token by the tokenizer of the run's model. Says in words what is not there.
 */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { messageOf } from '../core/errors.ts';
import type { Trajectory } from '../core/types.ts';
import { LeftOut, type TokenRow as RowToWrite, tokenRows } from '../export/data-rows.ts';
import { comparisonOf } from '../export/export-data.ts';
import { readRunFile } from '../run/directory.ts';
import { loadTokenizer, type Tokenizer } from '../tokens/tokenizer.ts';
import { trainerLogprobsOf } from '../training/trainer-logprobs.ts';
import type { TokenRow, TokenView } from './api.ts';

type Spelling = { readonly pieceOf: (id: number) => string } | { readonly why: string };

/** `group`: the rollouts that its rewards are compared with, without what is excluded. */
type TokenReader = (trajectory: Trajectory, group: readonly Trajectory[], step: number | null) => Promise<TokenView>;

/** Of one run, whose tokenizer is loaded once. */
export function tokenReader(run: string): TokenReader {
  let spelling: Promise<Spelling> | undefined;
  return async (trajectory, group, step) => {
    spelling ??= spellingOf(run);
    return viewOf(run, await spelling, trajectory, group, step);
  };
}

function viewOf(run: string, spelling: Spelling, ...[trajectory, group, step]: Parameters<TokenReader>): TokenView {
  const compared = group.find(({ rolloutId }) => rolloutId === trajectory.rolloutId);
  const advantageOf = compared && comparisonOf(run)(group).bind(undefined, compared);
  const rollout = {
    trajectory: compared ?? trajectory,
    step,
    group: 0,
    leaveOut: () => {},
    advantageOf: advantageOf ?? (() => undefined),
  };
  const [rows, why] = rowsOf(rollout);
  const missing = trajectory.turns.length - rows.reduce((sum, { chain }) => sum + chain.length, 0);
  const notes = [
    ...(why === undefined ? [] : [`There are no rows: the rollout is ${why}.`]),
    ...(rows.length > 0 && missing > 0
      ? [`${missing} of ${trajectory.turns.length} turns are in no row: they are not trained.`]
      : []),
    ...(compared === undefined ? ['The rollout is excluded, so it is compared with none and has no advantages.'] : []),
    ...(rows.length > 0 && 'why' in spelling ? [spelling.why] : []),
  ];
  const pieceOf = 'why' in spelling ? String : spelling.pieceOf;
  const trained = step === null ? undefined : trainerLogprobsOf(run, step, trajectory.rolloutId);
  const keptOf = (place: number): Float32Array | null => (trained?.length === rows.length ? trained[place]! : null);
  return {
    rows: rows.map((row, place) => rowOf(row, pieceOf, keptOf(place))),
    note: notes.length === 0 ? null : notes.join(' '),
  };
}

function rowsOf(rollout: Parameters<typeof tokenRows>[0]): readonly [readonly RowToWrite[], why?: string] {
  try {
    return [tokenRows(rollout, true)];
  } catch (thrown) {
    if (thrown instanceof LeftOut) return [[], thrown.message];
    throw thrown;
  }
}

/** `kept`: what the trainer said of each sampled token. */
function rowOf({ sample, chain, hasSignal }: RowToWrite, pieceOf: (id: number) => string, kept: Float32Array | null): TokenRow {
  const ids = [...sample.tokens];
  return {
    pieces: ids.map(pieceOf),
    ids,
    mask: [...sample.mask],
    logprobs: [...sample.logprobs],
    advantages: hasSignal ? [...sample.advantages] : null,
    versions: [...sample.versions],
    trainerLogprobs: kept && spread(kept, sample.mask),
    temperature: sample.temperature,
    turns: chain.map(({ index, promptIds, sampledIds }) => ({
      index,
      start: promptIds.length,
      end: promptIds.length + sampledIds.length,
    })),
  };
}

/** Null if they belong to other tokens: marks that came later may have changed the rows. */
function spread(kept: Float32Array, mask: Uint8Array): readonly number[] | null {
  let next = 0;
  const spreadOut = Array.from(mask, (sampled) => (sampled === 1 ? kept[next++] : 0));
  return next === kept.length ? (spreadOut as number[]) : null;
}

async function spellingOf(run: string): Promise<Spelling> {
  const record = existsSync(join(run, 'run.json')) ? readRunFile(run) : {};
  const { model } = (record as { readonly settings?: { readonly model?: unknown } }).settings ?? {};
  if (typeof model !== 'string') return { why: 'Tokens are shown as ids: the run does not say which model it used.' };
  try {
    return { pieceOf: speller(await loadTokenizer(model)) };
  } catch (thrown) {
    return { why: `Tokens are shown as ids: the tokenizer of ${model} cannot be read (${messageOf(thrown)}).` };
  }
}

/** A token of part of a character is spelt in bytes. */
function speller({ bytesOf, decode }: Tokenizer): (id: number) => string {
  const known = new Map<number, string>();
  const hex = (byte: number): string => `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
  const textOf = (id: number): string => {
    const text = decode([id]);
    if (!text.includes('\uFFFD') || bytesOf === undefined) return text;
    return bytesOf(id).reduce((spelt, byte) => spelt + (byte < 0x80 ? String.fromCharCode(byte) : hex(byte)), '');
  };
  return (id) => {
    const piece = known.get(id) ?? textOf(id);
    known.set(id, piece);
    return piece;
  };
}
