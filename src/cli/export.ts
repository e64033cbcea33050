/** `trainyard export`: writes trained weights for other programs, and says which checkpoint they are of and what was written. */
import { printableLine } from '../core/describe.ts';
import { type Exported, type ExportRequest, exportCheckpoint, type Written } from '../run/export-weights.ts';

interface ExportFlags extends Omit<ExportRequest, 'from'> {
  readonly json: boolean;
}

const CHOSEN = { given: '', best: ', the best of the run', last: ', the last of the run' } as const;
const NAMES = { adapter: 'PEFT folder', 'gguf-adapter': 'GGUF adapter' } as const;

export async function exportCommand(from: string, { json, ...flags }: ExportFlags): Promise<number> {
  const exported = await exportCheckpoint({ from, ...flags });
  console.log(json ? JSON.stringify({ type: 'exported', ...exported }) : exportedLines(exported).map(printableLine).join('\n'));
  return 0;
}

function exportedLines({ folder, chosen, written }: Exported): readonly string[] {
  const line = ({ kind, path, tensors, bytes }: Written): string =>
    `${NAMES[kind]} ${path}: ${tensors} tensors, ${(bytes / 1e6).toFixed(1)} MB`;
  return [`Exported ${folder}${CHOSEN[chosen]}`, ...written.map(line)];
}
