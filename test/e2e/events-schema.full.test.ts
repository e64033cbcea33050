/** What real runs write to events.jsonl fits the published schema. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect, it } from 'vitest';
import { defineGrader, defineWorkflow } from '../../src/core/define.ts';
import { type Schema, schemaFault } from '../../src/core/json-schema.ts';
import { evaluateOnly } from '../../src/evaluation/evaluate.ts';
import { eventsIn } from '../../src/run/directory.ts';
import { sft } from '../../src/training/sft.ts';
import { train } from '../../src/training/train.ts';
import { sharedFolder } from '../fixtures/folder.ts';
import { readText } from '../house/sources.ts';

const schema = JSON.parse(readText('docs/reference/events.schema.json')) as Schema & { readonly anyOf: readonly Schema[] };
const folder = sharedFolder();

const workflow = defineWorkflow(async (ctx) => {
  const { baseURL, apiKey, fetch, name: model } = ctx.model();
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const body = JSON.stringify({ model, messages: ctx.prompt, max_tokens: 4 });
  await fetch(`${baseURL}/chat/completions`, { method: 'POST', headers, body });
});
/** Rewards that differ within groups, whatever the policy says. */
let graded = 0;
const grader = defineGrader(() => ({ value: graded++ % 2, parts: { even: 1 }, metrics: { length: 3 } }));
const tasks = Array.from({ length: 4 }, (_, i) => ({ id: `t${i}`, prompt: `Question ${i}?`, metadata: { tag: 'all' } }));
const shared = { entry: { workflow, grader }, heldOut: tasks.slice(0, 2), threads: 1, transcripts: 1 };

const types = (run: string) => eventsIn(run).map(({ type }) => type);
const faults = (run: string) =>
  eventsIn(run).flatMap((event) => {
    const fault = schemaFault(schema, event);
    return fault === undefined ? [] : [[event, fault]];
  });

const ask = (content: string) => [{ role: 'user', content }];

it('the events of a training, an evaluation, fine-tuning and a failure fit docs/reference/events.schema.json', async () => {
  const runs = ['train', 'eval', 'sft', 'failed'].map((name) => join(folder, name));
  const [trained, measured, taught, failed] = runs as [string, string, string, string];
  const small = { steps: 1, group: 2, groupsPerStep: 2, refill: 1 };
  await train({ ...shared, ...small, tasks, run: trained });
  await evaluateOnly({ ...shared, run: measured, n: 2, price: [1, 2] });
  const talks = tasks.map(({ prompt }) => ({ messages: [...ask(prompt), { role: 'assistant', content: 'It is.' }] }));
  await writeFile(join(folder, 'talks.jsonl'), talks.map((talk) => `${JSON.stringify(talk)}\n`).join(''));
  await sft({ from: join(folder, 'talks.jsonl'), run: taught, epochs: 1, threads: 1 });
  const broken = defineGrader(() => {
    throw new Error('broken');
  });
  await expect(train({ ...shared, ...small, entry: { workflow, grader: broken }, tasks, run: failed })).rejects.toThrow();
  const evaluated = ['eval-end', 'transcript'];
  expect(types(trained)).toEqual(['warning', 'run-start', ...evaluated, 'step-end', ...evaluated, 'done']);
  expect(types(measured)).toEqual(expect.arrayContaining(['eval-start', 'eval-end', 'done']));
  expect(types(taught)).toEqual(['sft-start', 'sft-step', 'sft-end']);
  expect(types(failed).at(-1)).toBe('error');
  expect(runs.flatMap(faults)).toEqual([]);
});
