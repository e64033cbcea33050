/**
 * What was checked, told line by line while it happens: passed with what was measured, failed with why, or skipped with why.
 *
 * A check passes when its body returns and fails when it throws. The last line counts them; a failure makes the exit code 1, a skip
 * does not, since it is in plain sight.
 */
import { performance } from 'node:perf_hooks';
import { type Program, runProgram } from './child.ts';

export interface CheckResult {
  readonly name: string;
  readonly passed: boolean;
  /** What was measured; why, where it failed. */
  readonly measured: string;
  readonly seconds: number;
}

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
    const seconds = (): number => (performance.now() - began) / 1000;
    try {
      const measured = await body();
      this.tell({ name, passed: true, measured, seconds: seconds() });
      return true;
    } catch (thrown) {
      const why = thrown instanceof Error ? (thrown.stack ?? thrown.message) : String(thrown);
      this.tell({ name, passed: false, measured: why, seconds: seconds() });
      return false;
    }
  }

  /** The checks of a program, which tells each as a line of JSON. */
  async checkBy(name: string, program: Program): Promise<void> {
    await this.check(name, async () => {
      let told = 0;
      const output = await runProgram(program, (line) => {
        if (!line.startsWith('{"name"')) return;
        told++;
        this.tell(JSON.parse(line));
      });
      if (told === 0) throw new Error(`it reported none:\n${output}`);
      return `${told} checks`;
    });
  }

  /** A check that somebody else ran. */
  tell({ name, passed, measured, seconds }: CheckResult): void {
    const took = `${name} (${seconds.toFixed(1)} s)`;
    this.#counts[passed ? 'passed' : 'failed']++;
    this.#print(passed ? `  passed   ${took}: ${measured}` : `  FAILED   ${took}`);
    if (!passed) this.note(measured);
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
