/**
 * What the AReaL workflows of a process share, HTTP client and reward processes, lives from the first workflow's set-up to the last one's
 * teardown. Each is made when first needed, so code that runs without a set-up has them too.
 */
import { closeHttpClient } from './http-client.ts';

let workflows = 0;
const closers = new Set<() => Promise<void>>();

/** Called when the last workflow is torn down. */
export function closeWithWorkflows(close: () => Promise<void>): void {
  closers.add(close);
}

export function holdShared(): void {
  workflows++;
}

export async function releaseShared(): Promise<void> {
  workflows = Math.max(0, workflows - 1);
  if (workflows > 0) return;
  closeHttpClient();
  await Promise.all([...closers].map((close) => close()));
}
