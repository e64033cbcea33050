/**
 * The README.md of the base policy: how it was made, how good it is, and what reinforcement learning can and cannot do with it.
 *
 * Only words and rounding; every number is measured by pretrain.ts.
 */
import type { LlamaConfig } from '../src/nn/config.ts';

export interface PhaseTraining {
  readonly name: string;
  readonly steps: number;
  readonly tokens: number;
  readonly seconds: number;
  /** Mean over the last steps, nats per trained token. */
  readonly loss: number;
}

/** How good the policy was after a phase. */
export interface Measurement {
  /** Share of held-out questions answered rightly, with the most likely tokens and at temperature 1. */
  readonly greedy: number;
  readonly sampled: number;
  /** Share of each ending at temperature 1, commonest first. */
  readonly endings: readonly (readonly [string, number])[];
}

export type PhaseReport = PhaseTraining & Measurement;

export interface ModelCardFacts {
  readonly seed: number;
  readonly shape: LlamaConfig;
  readonly parameters: number;
  readonly batch: number;
  /** Held-out questions behind each share. */
  readonly measured: number;
  readonly phases: readonly PhaseReport[];
}

export function modelCard(facts: ModelCardFacts): string {
  const { shape, phases } = facts;
  const last = phases.at(-1);
  const sizes = `hidden ${shape.hiddenSize}, ${shape.layers} layers, ${shape.heads} heads, feed-forward ${shape.intermediateSize}`;
  return `# The base policy

A language model of ${facts.parameters.toLocaleString('en')} parameters that knows one job badly: the shop assistant of \`examples/shop\`.
It is here so that a first training run needs no download and no GPU. It is a Llama-shaped decoder in Hugging Face layout
(${sizes}, ${shape.vocabSize} tokens, context ${shape.contextLength}, ${shape.tied ? 'tied' : 'untied'} embeddings, float32).

## How it was made

\`npm run pretrain\` (seed ${facts.seed}) makes every file in this folder from nothing, on a CPU, on generated conversations: AdamW, batches of
${facts.batch} conversations, cross-entropy on the assistant's tokens only, one conversation in four a copying exercise.

| phase | steps | tokens | seconds | final loss | held-out success, greedy | held-out success, temperature 1 |
|---|---|---|---|---|---|---|
${phases.map(phaseRow).join('\n')}

Phase A shows the job done well and teaches the format, the tools and copying. Phase B shows it done badly, mostly by guessing,
and makes the policy weak: that is what reinforcement learning gets to undo. Success is the share of ${facts.measured} questions answered with the
right number; their items, prices and stocks are in no other split, and they are not the questions of \`examples/shop/held-out.jsonl\`.

How rollouts of this policy end at temperature 1:

| ending | share |
|---|---|
${(last?.endings ?? []).map(([ending, share]) => `| ${ending} | ${percent(share)} |`).join('\n')}

## What reinforcement learning does with it

It finds the behaviours that pay (look the item up under its full name, read the right field, let the calculator multiply) among
those the policy already samples now and then, and makes them the rule, on items it never saw. It does not teach it to copy
names and digits or to write a tool call: that comes from phase A, and a policy that cannot do it gets no reward to learn from.
Do not expect anything of this model outside the shop.

Prices and stocks of held-out items occur in pretraining only as made-up numbers in wrong answers and in copying exercises, never
as the price or the stock of an item. Half of the values that items do have there are of three digits: with two-digit ones alone
the policy learns by heart which pairs of digits there are, and fails on the others.
`;
}

function phaseRow(phase: PhaseReport): string {
  const { name, steps, tokens, seconds, loss, greedy, sampled } = phase;
  const millions = `${(tokens / 1e6).toFixed(1)} M`;
  return `| ${[name, steps, millions, seconds.toFixed(0), loss.toFixed(4), percent(greedy), percent(sampled)].join(' | ')} |`;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}
