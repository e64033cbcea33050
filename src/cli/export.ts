/** `trainyard export`: writes trained weights for other programs, and says which checkpoint they are of and what was written. */
import { printableLine } from '../core/describe.ts';
import type { Emit } from '../core/events.ts';
import { type Exported, type ExportRequest, exportCheckpoint, type Written } from '../run/export-weights.ts';
import { guarded } from './guarded.ts';
import { jsonLines, textLines } from './print.ts';

interface ExportFlags extends Omit<ExportRequest, 'from'> {
  readonly json: boolean;
}

const CHOSEN = { given: '', best: ', the best of the run', last: ', the last of the run' } as const;
const NAMES = {
  ...{ adapter: 'PEFT folder', merged: 'Hugging Face folder', 'gguf-adapter': 'GGUF adapter' },
  'chat-template': 'Chat template that writes the tools as in training, for llama-server --chat-template-file:',
} as const;

export async function exportCommand(from: string, { json, ...flags }: ExportFlags): Promise<number> {
  const emit: Emit = json ? jsonLines(process.stdout) : textLines(process.stdout);
  const exported = await guarded(emit, { steps: false }, ({ stop }) => exportCheckpoint({ from, ...flags }, stop));
  console.log(json ? JSON.stringify({ type: 'exported', ...exported }) : exportedLines(exported).map(printableLine).join('\n'));
  return 0;
}

function exportedLines({ folder, chosen, isTrainedBase, base, written }: Exported): readonly string[] {
  const line = ({ kind, path, tensors, bytes, dtype }: Written): string => {
    if (tensors === undefined) return `${NAMES[kind]} ${path}`;
    return [`${NAMES[kind]} ${path}: ${tensors} tensors`, ...(dtype ? [dtype] : []), `${(bytes / 1e6).toFixed(1)} MB`].join(', ');
  };
  const other = isTrainedBase === false ? [`${base} is not the model that the adapter was trained on`] : [];
  return [`Exported ${folder}${CHOSEN[chosen]}`, ...other, ...written.map(line)];
}
