/** A reporter whose one line, the last of a run, says what was skipped because the machine lacks a program. Prints nothing if nothing was. */
import type { Reporter, TestModule } from 'vitest/node';
import type {} from '../fixtures/needs.ts';

export class SkippedReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const counts = new Map<string, number>();
    for (const module of modules) {
      for (const test of module.children.allTests('skipped')) {
        const { needs } = test.meta();
        if (needs !== undefined) counts.set(needs, (counts.get(needs) ?? 0) + 1);
      }
    }
    const parts = [...counts].map(([needs, count]) => `${count} for want of ${needs}`);
    if (parts.length > 0) process.stdout.write(`Tests skipped: ${parts.join('; ')}\n`);
  }
}
