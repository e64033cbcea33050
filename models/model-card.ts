/**
 * The README.md of the base policy: how it was made, how good it is, and what reinforcement learning can and cannot do with it.
 *
 * Only words and rounding; every number is measured by pretrain.ts.
 */
import type { LlamaConfig } from '../src/engines/embedded/model/config.ts';

export interface PhaseTraining {
  readonly name: string;
  readonly steps: number;
  readonly tokens: number;
  readonly seconds: number;
  /** Mean over the last steps, nats per trained token. */
  readonly loss: number;
}

/** Share of an example's held-out tasks that were solved, with the most likely tokens and at temperature 1. */
export interface Success {
  readonly example: string;
  readonly greedy: number;
  readonly sampled: number;
}

/** How good the policy was after a phase. */
export interface Measurement {
  readonly successes: readonly Success[];
  /** Share of each ending in the shop at temperature 1, commonest first. */
  readonly shopEndings: readonly (readonly [string, number])[];
}

export type PhaseReport = PhaseTraining & Measurement;

export interface ModelCardFacts {
  readonly seed: number;
  readonly shape: LlamaConfig;
  readonly parameters: number;
  readonly batch: number;
  /** Held-out tasks behind each share. */
  readonly measured: number;
  readonly phases: readonly PhaseReport[];
}

export function modelCard(facts: ModelCardFacts): string {
  const { shape, phases } = facts;
  const last = phases.at(-1);
  const sizes = `hidden ${shape.hiddenSize}, ${shape.layers} layers, ${shape.heads} heads, feed-forward ${shape.intermediateSize}`;
  return `# The base policy

A language model of ${facts.parameters.toLocaleString('en')} parameters that knows three jobs badly: those of \`examples/shop\`,
\`examples/triage\` and \`examples/desk\`. It is here so that a first training run needs no download and no GPU. It is a Llama-shaped decoder in Hugging Face layout
(${sizes}, ${shape.vocabSize} tokens, context ${shape.contextLength}, ${shape.tied ? 'tied' : 'untied'} embeddings, float32).

## How it was made

\`npm run pretrain\` (seed ${facts.seed}) makes every file in this folder from nothing, on a CPU, on generated conversations: AdamW, batches of
${facts.batch} conversations, cross-entropy on the assistant's tokens only. Half of the conversations are the shop's, one in six is a copying
exercise, one in eight triage's, the rest are the clerk's and the customer's of the desk.

| phase | steps | tokens | seconds | final loss |
|---|---|---|---|---|
${phases.map(phaseRow).join('\n')}

Phase A shows the jobs done well and teaches the formats, the tools and copying. Phase B shows them done badly, mostly by guessing,
and makes the policy weak: that is what reinforcement learning gets to undo. (The desk's customer, who is never trained, is shown
well in both.)

Share of ${facts.measured} held-out tasks that are solved, greedy / at temperature 1. Their brands, the prices and stocks of the shop's and the pairs
of sentences of triage's are in no other split, and they are not the tasks of the examples' \`held-out.jsonl\`.

| after phase | ${(last?.successes ?? []).map(({ example }) => example).join(' | ')} |
|---|${(last?.successes ?? []).map(() => '---|').join('')}
${phases.map(successRow).join('\n')}

How rollouts of the shop's agent end at temperature 1:

| ending | share |
|---|---|
${(last?.shopEndings ?? []).map(([ending, share]) => `| ${ending} | ${percent(share)} |`).join('\n')}

## What reinforcement learning does with it

It finds the behaviours that pay (look the item up under its full name, read the right field, let the calculator multiply; sort by
what is wanted; ask before ordering) among those the policy already samples now and then, and makes them the rule, on items it
never saw. It does not teach it to copy names and digits or to write a tool call: that comes from phase A, and a policy that
cannot do it gets no reward to learn from. Do not expect anything of this model outside these three jobs and their prompts.

Prices and stocks of held-out items occur in pretraining only as made-up numbers in wrong answers and in copying exercises, never
as the price or the stock of an item. Half of the values that items do have there are of three digits: with two-digit ones alone
the policy learns by heart which pairs of digits there are, and fails on the others.
`;
}

function phaseRow(phase: PhaseReport): string {
  const { name, steps, tokens, seconds, loss } = phase;
  return `| ${[name, steps, `${(tokens / 1e6).toFixed(1)} M`, seconds.toFixed(0), loss.toFixed(4)].join(' | ')} |`;
}

function successRow({ name, successes }: PhaseReport): string {
  return `| ${[name, ...successes.map(({ greedy, sampled }) => `${percent(greedy)} / ${percent(sampled)}`)].join(' | ')} |`;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)} %`;
}
