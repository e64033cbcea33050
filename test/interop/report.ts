/**
 * What was checked, told line by line while it happens: passed with what was measured, failed with why, or skipped with why.
 *
 * A check passes when its body returns and fails when it throws. The last line counts them; a failure makes the exit code 1, a skip
 * does not, since it is in plain sight.
 */
import { performance } from 'node:perf_hooks';

export class Report {
  readonly #counts = { passed: 0, failed: 0, skipped: 0 };
  readonly #print: (line: string) => void;

  constructor(print: (line: string) => void) {
    this.#print = print;
  }

  heading(text: string): void {
    this.#print(`\n${text}`);
  }

  note(text: string): void {
    this.#print(`  ${text.replaceAll('\n', '\n  ')}`);
  }

  /** Runs one check; its body gives what it measured. Says whether it passed. */
  async check(name: string, body: () => Promise<string>): Promise<boolean> {
    const began = performance.now();
    try {
      const measured = await body();
      this.#counts.passed++;
      this.#print(`  passed   ${name} (${seconds(began)}): ${measured}`);
      return true;
    } catch (thrown) {
      this.#counts.failed++;
      this.#print(`  FAILED   ${name} (${seconds(began)})`);
      this.note(thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown));
      return false;
    }
  }

  skip(name: string, why: string): void {
    this.#counts.skipped++;
    this.#print(`  skipped  ${name}: ${why}`);
  }

  /** Prints the last line; gives the exit code. */
  close(): number {
    const { passed, failed, skipped } = this.#counts;
    this.#print(`\n${passed} passed, ${failed} failed, ${skipped} skipped`);
    return failed === 0 ? 0 : 1;
  }
}

function seconds(began: number): string {
  return `${((performance.now() - began) / 1000).toFixed(1)} s`;
}
