/**
 * Async all the way: an episode that reads a file, asks a web service, the engine and a client of another API, and never blocks.
 * While it waits for any of them, other rollouts go on.
 *
 *   npm run trainyard -- train examples/areal/async-workflow.ts --tasks examples/triage/train.jsonl --held-out examples/triage/held-out.jsonl
 */
import { readFile } from 'node:fs/promises';
import OpenAI from 'openai';
import { currentRollout, defineGrader } from 'trainyard';
import {
  type EpisodeData,
  type EpisodeResult,
  episodeSample,
  type InferenceEngine,
  RolloutWorkflow,
  workflowContext,
} from 'trainyard/areal';

/** Your service's address goes here; this one needs no server. */
const QUEUES_URL = 'data:application/json,["billing","shipping","returns","repairs"]';

export default class AsyncWorkflow extends RolloutWorkflow {
  override async arunEpisode(engine: InferenceEngine, data: EpisodeData): Promise<EpisodeResult> {
    // Files: node:fs/promises, never readFileSync.
    const instructions = await readFile(new URL('./instructions.txt', import.meta.url), 'utf8');
    const messages = [{ role: 'system', content: instructions.trim() } as const, ...data.messages];

    // HTTP: the client that all rollouts share.
    const httpClient = workflowContext.getHttpClient();
    const queues = (await (await httpClient(QUEUES_URL)).json()) as string[];

    // The engine: tokens in, tokens out.
    const response = await engine.agenerate({ inputIds: engine.applyChatTemplate(messages), gconfig: { maxNewTokens: 32 } });

    // Other model calls: here a second opinion of the same model, which is kept and not trained.
    const model = currentRollout()!.model();
    const client = new OpenAI({ ...model.openai(), fetch: httpClient });
    const second = await client.chat.completions.create({ model: model.name, messages });

    workflowContext.stats.scalar('names_a_queue', queues.some((queue) => response.text.endsWith(queue)) ? 1 : 0);
    workflowContext.stats.scalar('agrees', second.choices[0]?.message.content === response.text ? 1 : 0);
    // Only this row is trained. It has no reward yet: that takes the answer, which only the grader knows.
    return episodeSample(response);
  }
}

/** 1 for the right queue, in the answer that is trained: the first. */
export const grader = defineGrader(({ task, turns }) => (turns[0]?.response.content?.match(/\w+$/)?.[0] === task.answer ? 1 : 0));
