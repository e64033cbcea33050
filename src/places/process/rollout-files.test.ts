import { spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { hasProc } from '../../../test/fixtures/system.ts';
import { takeOut } from './isolated-workflow.ts';

let home: string;
beforeEach(() => {
  home = fs.mkdtempSync(join(tmpdir(), 'rollout-files-'));
  fs.mkdirSync(join(home, 'from'));
});
afterEach(() => fs.rmSync(home, { recursive: true, force: true }));
const at = (...names: string[]): string => join(home, ...names);

describe.skipIf(!hasProc)('taking a folder out', () => {
  it('brings its files, folders and links, and leaves it empty', async () => {
    fs.mkdirSync(at('from/deep'));
    fs.writeFileSync(at('from/deep/file'), 'text');
    fs.symlinkSync('deep/file', at('from/link'));
    expect(await takeOut(at('from'), at('to'))).toBe(true);
    expect(fs.readFileSync(at('to/link'), 'utf8')).toBe('text');
    expect(fs.readdirSync(at('from'))).toEqual([]);
  });

  it('is false for what is not there, or a link instead of a folder', async () => {
    fs.symlinkSync(at('from'), at('link'));
    expect(await takeOut(at('link'), at('to'))).toBe(false);
    expect(await takeOut(at('none'), at('to'))).toBe(false);
    expect(fs.existsSync(at('to'))).toBe(false);
  });

  it('refuses what would fill the disk or has no end', async () => {
    fs.writeFileSync(at('from/sparse'), '');
    fs.truncateSync(at('from/sparse'), 2 ** 40);
    await expect(takeOut(at('from'), at('to'))).rejects.toMatchObject({
      code: 'WORKFLOW_FAILED',
      message: expect.stringMatching(/more than 1024 MB/),
    });
    fs.rmSync(at('from/sparse'));
    fs.mkdirSync(at('from', ...Array.from({ length: 70 }, () => 'd')), { recursive: true });
    await expect(takeOut(at('from'), at('to'))).rejects.toMatchObject({
      message: expect.stringMatching(/65 deep, expected at most 64/),
    });
  });

  it('neither copies nor deletes what lies elsewhere, though a folder becomes a link to there again and again', async () => {
    fs.mkdirSync(at('elsewhere'));
    fs.writeFileSync(at('elsewhere/secret'), 'secret');
    // Exchanges the two without end: a copy that looks twice at a path sooner or later goes through the link.
    const swap = `
      const fs = require('node:fs');
      fs.mkdirSync('from/a'); fs.writeFileSync('from/a/own', 'own'); fs.symlinkSync('../elsewhere', 'b');
      process.stdout.write('on');
      for (;;) {
        try { fs.renameSync('from/a', 'c'); fs.renameSync('b', 'from/a'); fs.renameSync('from/a', 'b'); fs.renameSync('c', 'from/a'); }
        catch { try { for (const p of ['from/a', 'b', 'c']) fs.rmSync(p, { recursive: true, force: true });
          fs.mkdirSync('from/a'); fs.writeFileSync('from/a/own', 'own'); fs.symlinkSync('../elsewhere', 'b'); } catch {} }
      }`;
    const swapping = spawn(process.execPath, ['-e', swap], { cwd: home, stdio: ['ignore', 'pipe', 'inherit'] });
    const gone = once(swapping, 'exit');
    try {
      await once(swapping.stdout, 'data');
      for (let i = 0; i < 200; i++) {
        await takeOut(at('from'), at(`to-${i}`));
        // A link that was copied as one is for who called to drop.
        const entries = fs.readdirSync(at(`to-${i}`), { withFileTypes: true }).filter((entry) => entry.isDirectory());
        for (const { name } of entries) expect(fs.readdirSync(at(`to-${i}`, name))).not.toContain('secret');
      }
    } finally {
      swapping.kill('SIGKILL');
      await gone;
    }
    expect(fs.readFileSync(at('elsewhere/secret'), 'utf8')).toBe('secret');
  });
});
