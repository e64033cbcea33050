/**
 * Writes llms.txt (https://llmstxt.org): what this is, and the pages that docs/README.md lists, each with its line. Write pages there;
 * `npm run llms` does the rest, and a test compares.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { posix } from 'node:path';

const ROOT = new URL('../', import.meta.url);

const HEAD = `# Trainyard

> Trainyard trains the TypeScript agent you already have. It runs the agent many times against a model through a gateway that records every sampled token, grades the rollouts, and improves the model by reinforcement learning. One npm package: small models on the CPU, larger ones at a Tinker server, any model behind an API to measure.

An entry file exports a workflow (\`defineWorkflow\`) and a grader (\`defineGrader\`); tasks lie beside it in \`train.jsonl\` and \`held-out.jsonl\`. The agent’s only change is that its client is built from \`ctx.model()\`. Commands: \`trainyard init\`, \`try\`, \`eval\`, \`train\`, \`diff\`, \`view\`, \`show\`, \`replay\`, \`verify\`, \`export\`.
`;

/** `index`: the text of docs/README.md. */
export function llmsText(index: string): string {
  const listed = index
    .slice(index.indexOf('\n## '))
    .replaceAll(/\]\(([^):]+)\)/g, (_, path: string) => `](${posix.join('docs', path)})`);
  return `${HEAD}${listed}`;
}

if (import.meta.main) writeFileSync(new URL('llms.txt', ROOT), llmsText(readFileSync(new URL('docs/README.md', ROOT), 'utf8')));
