/**
 * Opens the policy on a Tinker API server: chooses the server and the model, and wires up engine and trainer. The address is
 * TINKER_BASE_URL or `baseURL`, else that of the checkpoint, else the hosted service. The key is TINKER_API_KEY and is never written
 * anywhere.
 */
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { z } from 'zod';
import { openingWith } from '../../../core/async.ts';
import { boundary, TrainyardError } from '../../../core/errors.ts';
import type { Warn } from '../../../core/events.ts';
import { checkVocabulary, type Policy, type PolicyOptions, type PolicySettings } from '../../open-policy.ts';
import type { ServerSizes } from '../wire/tinker-messages.ts';
import { TinkerConnection } from './connection.ts';
import { readSavedState } from './saved-state.ts';
import { refuseStaleness } from './server-habits.ts';
import { TinkerEngine } from './tinker-engine.ts';
import { TinkerTrainer } from './tinker-trainer.ts';

const HOSTED = 'https://tinker.thinkingmachines.dev/services/tinker-prod';

/** Tinker's own default. */
const TINKER_RANK = 32;

export function openTinkerPolicy(
  settings: PolicySettings,
  words: number,
  { warn, stop, downtime }: PolicyOptions,
): Promise<Policy> {
  return openingWith(async (opened) => {
    const sizes = await sizesOf(settings.model);
    checkVocabulary(words, sizes.vocabSize);
    const saved = await readSavedState(settings.model);
    const connection = opened.use(
      await TinkerConnection.open({
        ...access(settings.baseURL ?? saved?.server),
        onTrouble: (message) => warn('POLICY_SERVER', message),
        downtime,
        signal: stop,
      }).catch((thrown: unknown) => {
        throw stop.aborted ? stop.reason : thrown;
      }),
    );
    const { offered, sizes: limits, keepsPublished = connection.address === HOSTED } = await connection.capabilities();
    const baseModel = chooseModel(settings.baseModel ?? saved?.baseModel, settings.model, offered);
    const offer = offered.find(({ name }) => name === baseModel);
    await checkTokenizer(settings.model, baseModel, offer?.tokenizerDigest);
    const contextLength = Math.min(sizes.contextLength, offer?.contextLength ?? Number.POSITIVE_INFINITY);
    const common = { connection, vocabSize: sizes.vocabSize, contextLength };
    const samplingSessionId = await connection.createSamplingSession({ baseModel });
    const engine = new TinkerEngine({ ...common, policyVersion: 0, samplingSessionId, gathers: limits !== undefined });
    const { seed, staleness = 0, workers } = settings;
    const loraRank = saved?.loraRank ?? settings.loraRank ?? Math.min(TINKER_RANK, limits?.max_lora_rank ?? TINKER_RANK);
    if (limits !== undefined) checkSizes({ ...settings, loraRank }, limits, warn);
    // Workers sample by themselves, and cannot be held.
    if (!keepsPublished && workers !== undefined) refuseStaleness(staleness);
    const told = {
      onPublished: (id: string, version: number) => engine.serve(id, version),
      onNotice: (message: string) => warn('POLICY_SERVER', message),
      ...(!keepsPublished && staleness > 0 && { onChanging: () => engine.hold() }),
    };
    const trainer = opened.use(new TinkerTrainer({ ...common, baseModel, loraRank, seed, staleness, ...told }));
    if (saved !== undefined) {
      await trainer.load(settings.model);
      await trainer.publish(0);
    }
    return {
      name: `${baseModel} at ${new URL(connection.address).host}`,
      server: connection.address,
      engine,
      trainer,
      [Symbol.asyncDispose]: () => opened[Symbol.asyncDispose](),
    };
  });
}

/** What would fail at the server later, or be wrong without a word. */
function checkSizes({ loraRank = 0, staleness = 0, callTokens = 0 }: PolicySettings, sizes: ServerSizes, warn: Warn): void {
  const { max_lora_rank: mostRank, call_tokens: mostTokens, keeps_published: keepsPublished } = sizes;
  if (!keepsPublished) refuseStaleness(staleness);
  if (loraRank > mostRank) {
    throw new TrainyardError(
      'USAGE',
      `loraRank: expected at most ${mostRank}, for which the server is made, found ${loraRank}`,
      `give --lora-rank ${mostRank}, or start the server with trainyard skyrl --lora-rank ${loraRank}`,
    );
  }
  if (callTokens <= mostTokens) return;
  const found = `answers of more than ${mostTokens} tokens make the server compile again, which takes a while each time`;
  warn(
    'POLICY_SERVER',
    `${found}: give --call-tokens ${mostTokens}, or start it with trainyard skyrl --call-tokens ${callTokens}`,
  );
}

export function access(named: string | undefined): { readonly baseURL: string; readonly apiKey: string } {
  const apiKey = process.env['TINKER_API_KEY'];
  if (apiKey === undefined || apiKey === '') {
    throw new TrainyardError(
      'USAGE',
      `TINKER_API_KEY is not set, and ${named ?? 'the hosted Tinker service'} needs a key`,
      named === undefined
        ? 'set TINKER_BASE_URL and TINKER_API_KEY; trainyard skyrl (on a GPU) and trainyard tinker start a server of your own and print both'
        : 'set it to the key of that server; trainyard tinker prints its own when it starts',
    );
  }
  return { baseURL: named ?? HOSTED, apiKey };
}

function chooseModel(wanted: string | undefined, folder: string, offered: readonly { readonly name: string }[]): string {
  const names = offered.map(({ name }) => name);
  const chosen = wanted ?? (names.length === 1 ? names[0] : names.find((name) => basename(name) === basename(folder)));
  if (chosen !== undefined && (names.length === 0 || names.includes(chosen))) return chosen;
  const list = `${names.slice(0, 12).join(', ')}${names.length > 12 ? ` and ${names.length - 12} more` : ''}`;
  throw new TrainyardError(
    'USAGE',
    chosen === undefined
      ? `the server offers ${names.length} models, and none was chosen: ${list || 'it lists none'}`
      : `the server does not offer ${JSON.stringify(chosen)}; it has ${list}`,
    'give --base-model the server’s name of the model whose tokenizer is in --model',
  );
}

/** With a different tokenizer, sampling and training would silently use meaningless ids. Most servers do not report a digest. */
async function checkTokenizer(dir: string, baseModel: string, digest: string | undefined): Promise<void> {
  if (digest === undefined) return;
  const file = await readFile(join(dir, 'tokenizer.json'));
  if (createHash('sha256').update(file).digest('hex') === digest) return;
  throw new TrainyardError(
    'MODEL_INVALID',
    `tokenizer.json in ${dir} is not the one of ${baseModel} at the server`,
    'give --model the folder of the very model that the server has',
  );
}

const sizesSchema = z.looseObject({
  vocab_size: z.int().min(1).optional(),
  max_position_embeddings: z.int().min(1).optional(),
});
const configSchema = z.looseObject({ ...sizesSchema.shape, text_config: sizesSchema.optional() });

/** Reads the folder's config.json for any architecture: only the server must support it. */
export async function sizesOf(dir: string): Promise<{ readonly vocabSize: number; readonly contextLength: number }> {
  const path = join(dir, 'config.json');
  const text = await boundary('FILE_NOT_FOUND', `cannot read ${path}`, () => readFile(path, 'utf8'));
  const parsed = configSchema.safeParse(await boundary('MODEL_INVALID', `${path} is not JSON`, () => JSON.parse(text)));
  const config = parsed.success ? { ...parsed.data.text_config, ...parsed.data } : {};
  const { vocab_size: vocabSize, max_position_embeddings: contextLength } = config;
  if (vocabSize !== undefined && contextLength !== undefined) return { vocabSize, contextLength };
  throw new TrainyardError(
    'MODEL_INVALID',
    `${path} lacks a whole vocab_size or max_position_embeddings`,
    'take config.json, tokenizer.json and tokenizer_config.json from the model’s own repository',
  );
}
