import { describe, expect, it } from 'vitest';
import { executePythonCode } from './execute-python-code.ts';

describe('executePythonCode', () => {
  it('tells the exit status, the output and the errors', async () => {
    expect(await executePythonCode('print(6 * 7)')).toBe('<returncode>0</returncode><stdout>42\n</stdout><stderr></stderr>');
    expect(await executePythonCode('print(1)\nraise ValueError("no")')).toMatch(
      /^<returncode>1<\/returncode><stdout>1\n<\/stdout><stderr>Traceback [\s\S]*ValueError: no\n<\/stderr>$/,
    );
    expect(await executePythonCode('import sys; sys.exit(127)')).toMatch('<returncode>127</returncode>');
  });

  it('ends what takes too long or says too much, and tells the policy', async () => {
    expect(await executePythonCode('print("on", flush=True)\nwhile True: pass', { timeout: 1 })).toMatch(
      /^<returncode>-\d+<\/returncode><stdout>on\n/,
    );
    expect(await executePythonCode('import time; time.sleep(60)', { timeout: 1 })).toBe(
      '<returncode>-1</returncode><stdout></stdout><stderr>TimeoutError: The code execution exceeded the timeout of 1 seconds.</stderr>',
    );
    expect(await executePythonCode('while True: print("x" * 1000)')).toMatch('OutputError: The code wrote more than 65536 bytes');
  });

  it('has neither network nor environment nor the machine’s files', async () => {
    const probe =
      'import os, socket\nprint(len(os.listdir("/tmp/work")), os.environ.get("HOME"))\nsocket.create_connection(("1.1.1.1", 80), 1)';
    expect(await executePythonCode(probe)).toMatch(/<stdout>1 None\n<\/stdout><stderr>Traceback[\s\S]*(OSError|unreachable)/);
  });

  it('stops when cancelled', async () => {
    const cancelled = executePythonCode('import time; time.sleep(60)', { signal: AbortSignal.timeout(300) });
    await expect(cancelled).rejects.toMatchObject({ code: 'CANCELLED' });
  });
});
