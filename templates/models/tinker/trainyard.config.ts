/** What every command here goes by; flags win over it. This file is code and is run by every command. */
import { defineConfig } from 'trainyard';

export default defineConfig({
  entry: 'agent.ts',
  tasks: 'train.jsonl',
  heldOut: 'held-out.jsonl',
  // Without `model`: the small policy that ships with Trainyard, without key or network.
  runs: {
    // npx trainyard train --use tinker
    tinker: { engine: 'tinker', model: 'Qwen/Qwen3-0.6B', callTokens: 64, learningRate: 3e-4 },
  },
});
