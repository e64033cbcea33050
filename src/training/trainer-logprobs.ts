/**
 * What the trainer said of each trained token, kept beside the run so that people can see where engine and trainer disagree: one file for
 * each step, a line of JSON that names the samples and then their log-probabilities as little-endian 32-bit floats. It is for looking only:
 * nothing is resumed or verified from it, and a file that is missing or torn counts as not kept.
 */
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { boundary, tried } from '../core/errors.ts';
import type { Sample } from '../core/types.ts';

type Named = readonly (readonly [rolloutId: string, tokens: number])[];

function fileOf(run: string, step: number): string {
  return join(run, 'trainer-logprobs', `step-${String(step).padStart(6, '0')}`);
}

/** `logprobs`: one array for each sample, one entry for each trained token. */
export async function keepTrainerLogprobs(
  run: string,
  step: number,
  samples: readonly Pick<Sample, 'rolloutId'>[],
  logprobs: readonly Float32Array[],
): Promise<void> {
  const named: Named = samples.map(({ rolloutId }, place) => [rolloutId, logprobs[place]!.length]);
  const bytes = logprobs.map((values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength));
  const file = fileOf(run, step);
  await boundary('STORE_FAILED', `cannot write ${file}`, async () => {
    await mkdir(dirname(file), { recursive: true });
    await writeFile(file, Buffer.concat([Buffer.from(`${JSON.stringify(named)}\n`), ...bytes]));
  });
}

/** Those of a rollout's samples, in the order of the batch; undefined if they were not kept. */
export function trainerLogprobsOf(run: string, step: number, rolloutId: string): readonly Float32Array[] | undefined {
  const file = fileOf(run, step);
  return existsSync(file) ? tried(() => samplesIn(readFileSync(file), rolloutId)) : undefined;
}

function samplesIn(bytes: Buffer, rolloutId: string): readonly Float32Array[] {
  const end = bytes.indexOf('\n');
  const named = JSON.parse(bytes.subarray(0, end).toString()) as Named;
  let at = end + 1;
  return named.flatMap(([id, tokens]) => {
    const from = at;
    at += 4 * tokens;
    // A view of a file that was cut off throws.
    return id === rolloutId
      ? [new Float32Array(new Uint8Array(bytes.buffer, bytes.byteOffset + from, 4 * tokens).slice().buffer)]
      : [];
  });
}
