/**
 * AgentScope's `execute_python_code`: a tool that runs what the policy wrote, in the sandbox (no network, no files of yours), and tells how it
 * ended. What goes wrong in the code is an answer for the policy; only a machine that cannot run code at all throws.
 */
import { TrainyardError } from '../../core/errors.ts';
import { openSandbox } from '../../processes/sandbox.ts';

export interface PythonOptions {
  /** Seconds. Default 300, as AgentScope has it. */
  readonly timeout?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Standard output and error together: a tool's answer must fit a context. */
const OUTPUT_BYTES = 64 * 1024;

/** Exit status of a shell that finds no such program. */
const NOT_FOUND = 127;

/** Throws SANDBOX_MISSING without bubblewrap or Python, and CANCELLED. */
export async function executePythonCode(code: string, { timeout = 300, signal }: PythonOptions = {}): Promise<string> {
  const limits = { wallMs: Math.ceil(timeout * 1000), cpuSeconds: Math.ceil(timeout), outputBytes: OUTPUT_BYTES };
  const files = { 'code.py': String(code) };
  const end = await openSandbox().run({ program: 'python3', args: ['-u', 'code.py'], files, limits, signal });
  const told = (status: number, why = '') =>
    `<returncode>${status}</returncode><stdout>${end.stdout}</stdout><stderr>${end.stderr}${why}</stderr>`;
  switch (end.kind) {
    case 'exited':
      if (end.code !== NOT_FOUND || !/python3.*not found/.test(end.stderr)) return told(end.code);
      throw new TrainyardError(
        'SANDBOX_MISSING',
        'executePythonCode needs python3, which is not on the sandbox’s PATH',
        'install Python in /usr/bin or /usr/local/bin, or give the agent another tool',
      );
    case 'signalled':
      return told(-end.signal);
    case 'timeout':
      return told(-1, `TimeoutError: The code execution exceeded the timeout of ${timeout} seconds.`);
    case 'memory':
      return told(-1, `MemoryError: The code used more than ${end.memoryMb} MB.`);
    case 'output':
      return told(-1, `OutputError: The code wrote more than ${end.outputBytes} bytes.`);
    case 'cancelled':
      throw new TrainyardError('CANCELLED', 'the execution of Python code was cancelled');
  }
}
