/**
 * `trainyard export`: writes trained weights for other programs, and says which checkpoint they are of and what was written; with
 * `--format`, rollouts as training data, and says what was left out.
 */
import { printableLine } from '../core/describe.ts';
import { TrainyardError } from '../core/errors.ts';
import { defined } from '../core/json.ts';
import type { DataRequest, ExportedData } from '../export/export-data.ts';
import type { Exported, ExportRequest, Written } from '../export/export-weights.ts';
import { flagOf } from '../settings/setting-rows.ts';
import { guarded } from './guarded.ts';
import { printing, saying } from './output/print.ts';
import { count } from './output/text.ts';

interface ExportFlags extends Omit<ExportRequest, 'from'>, Partial<Omit<DataRequest, 'from'>> {
  readonly json: boolean;
  readonly tensorboard?: string;
}

const CHOSEN = { given: '', best: ', the best of the run', last: ', the last of the run' } as const;
const NAMES = {
  adapter: 'PEFT folder',
  merged: 'Hugging Face folder',
  'gguf-adapter': 'GGUF adapter',
  'chat-template': 'Chat template that writes the tools as in training, for llama-server --chat-template-file:',
} as const;

export async function exportCommand(from: string, { json, tensorboard, ...flags }: ExportFlags): Promise<number> {
  if (tensorboard !== undefined) return await exportEvents(from, tensorboard, json, Object.keys(flags));
  const data = dataRequestOf(from, flags);
  const { exported, lines } = await guarded(printing(json), { steps: false }, async ({ stop }) => {
    if (data === undefined) {
      const weights = await (await import('../export/export-weights.ts')).exportCheckpoint({ from, ...flags }, stop);
      return { exported: weights, lines: exportedLines(weights) };
    }
    const written = await (await import('../export/export-data.ts')).exportData(data, stop);
    return { exported: written, lines: dataLines(written) };
  });
  saying(json)(lines.map(printableLine), { type: 'exported', ...exported });
  return 0;
}

async function exportEvents(from: string, to: string, json: boolean, others: readonly string[]): Promise<number> {
  if (others.length > 0) throw new TrainyardError('USAGE', 'expected no other flags beside --tensorboard', 'export twice');
  const values = (await import('../export/tensorboard.ts')).exportTensorBoard(from, to);
  const line = printableLine(`Exported ${count(values, 'value')} to ${to}: tensorboard --logdir ${to}`);
  saying(json)([line], { type: 'exported', format: 'tensorboard', to, values });
  return 0;
}

/** Undefined if weights are asked for. */
function dataRequestOf(from: string, flags: Omit<ExportFlags, 'json'>): DataRequest | undefined {
  const { format, to, purpose, only, filter, store, ...weights } = flags;
  if ((format ?? to ?? purpose ?? only ?? filter ?? store) === undefined) return undefined;
  const [ofWeights] = Object.keys(weights);
  if (format && to && !ofWeights) return { from, format, to, ...defined({ purpose, only, filter, store }) };
  const hint = 'give --format and --to for rollouts; without them, --adapter, --merged or --gguf-adapter for weights';
  const found = Object.keys(flags).map((name) => `--${flagOf({ name })}`);
  throw new TrainyardError(
    'USAGE',
    `expected --format and --to, and none of the flags for weights, found ${found.join(' ')}`,
    hint,
  );
}

function dataLines({ format, to, purpose, rollouts, rows, bytes, leftOut }: ExportedData): readonly string[] {
  const of = purpose === 'train' ? 'of training' : 'of evaluations';
  const left = Object.entries(leftOut).map(([what, n]) => `${n} ${what}`);
  return [
    `Exported ${count(rollouts, 'rollout')} ${of} to ${to}: ${count(rows, 'row')}, ${format}, ${(bytes / 1e6).toFixed(1)} MB`,
    ...(left.length === 0 ? [] : [`Left out: ${left.join(', ')}`]),
  ];
}

function exportedLines({ folder, chosen, isTrainedBase, base, written }: Exported): readonly string[] {
  const line = ({ kind, path, tensors, bytes, dtype }: Written): string => {
    if (tensors === undefined) return `${NAMES[kind]} ${path}`;
    return [`${NAMES[kind]} ${path}: ${tensors} tensors`, ...(dtype ? [dtype] : []), `${(bytes / 1e6).toFixed(1)} MB`].join(', ');
  };
  const other = isTrainedBase === false ? [`${base} is not the model that the adapter was trained on`] : [];
  return [`Exported ${folder}${CHOSEN[chosen]}`, ...other, ...written.map(line)];
}
