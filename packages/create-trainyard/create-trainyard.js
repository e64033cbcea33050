#!/usr/bin/env node
/** `npm create trainyard my-agent -- --yes`: runs `trainyard init my-agent --yes` of the installed package. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { findPackageJSON } from 'node:module';
import { dirname, join } from 'node:path';

const manifest = findPackageJSON('trainyard', import.meta.url);
const { bin } = JSON.parse(readFileSync(manifest, 'utf8'));
const main = join(dirname(manifest), bin.trainyard);
const { status } = spawnSync(process.execPath, [main, 'init', ...process.argv.slice(2)], { stdio: 'inherit' });
process.exitCode = status ?? 1;
