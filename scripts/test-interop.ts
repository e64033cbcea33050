/**
 * Interoperability for real: other people's programs from PyPI against ours, and ours against theirs. `npm run test:interop`.
 *
 * With words as arguments only the checks so named are run: `losses`, `transformers`, `export`, `data`, `gguf`, `client`, `skyrl`, `llama-cpp`,
 * `tensorboard`. Takes minutes, most of them for SkyRL; no part of `npm test`. What cannot be had here is skipped in plain sight; docs/reference/interop.md says what is checked.
 */
import { checkData } from '../test/interop/data.ts';
import { checkExport } from '../test/interop/export.ts';
import { checkGguf } from '../test/interop/gguf.ts';
import { checkLlamaCpp } from '../test/interop/llama-cpp.ts';
import { checkLosses } from '../test/interop/losses.ts';
import { checkOfficialClient } from '../test/interop/official-client.ts';
import { preparePython } from '../test/interop/python-environment.ts';
import { Report } from '../test/interop/report.ts';
import { checkSkyrl } from '../test/interop/skyrl.ts';
import { checkTensorBoard } from '../test/interop/tensorboard.ts';
import { checkTransformers } from '../test/interop/transformers.ts';

type Check = (report: Report, python: string) => Promise<void>;

const PARTS: readonly { readonly name: string; readonly title: string; readonly needs?: string; readonly check: Check }[] = [
  { name: 'losses', title: 'Losses and advantages beside verl’s, TRL’s and AReaL’s', needs: 'losses', check: checkLosses },
  { name: 'transformers', title: 'Weights to and from transformers', needs: 'client', check: checkTransformers },
  { name: 'export', title: 'Exported weights in PEFT, transformers and llama.cpp', needs: 'client', check: checkExport },
  { name: 'data', title: 'Exported rollouts in datasets, TRL, verl and the OpenAI SDK', needs: 'data', check: checkData },
  { name: 'gguf', title: 'A GGUF file against Python’s gguf and llama.cpp', needs: 'client', check: checkGguf },
  {
    name: 'client',
    title: 'The official Tinker client against trainyard tinker',
    needs: 'client',
    check: checkOfficialClient,
  },
  { name: 'skyrl', title: 'Our Tinker client against SkyRL’s server', needs: 'skyrl', check: checkSkyrl },
  { name: 'tensorboard', title: 'TensorBoard files in TensorBoard itself', needs: 'tensorboard', check: checkTensorBoard },
  { name: 'llama-cpp', title: 'An agent measured with a model behind llama.cpp’s server', check: checkLlamaCpp },
];

const named = process.argv.slice(2);
const unknown = named.filter((name) => !PARTS.some((part) => part.name === name));
if (unknown.length > 0) {
  console.error(`there is no check named ${unknown.join(', ')}; there are ${PARTS.map((part) => part.name).join(', ')}`);
  process.exit(2);
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(1));
const report = new Report((line) => console.log(line));
for (const { name, title, needs, check } of PARTS) {
  if (named.length > 0 && !named.includes(name)) continue;
  report.heading(title);
  const prepared =
    needs === undefined ? ({ kind: 'ready', python: '' } as const) : preparePython(needs, (line) => report.note(line));
  if (prepared.kind === 'missing') report.skip(title, prepared.why);
  else if (prepared.kind === 'broken') report.tell({ name: title, passed: false, measured: prepared.why, seconds: 0 });
  else await check(report, prepared.python);
}
process.exitCode = report.close();
