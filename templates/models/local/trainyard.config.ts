/** What every command here goes by; flags win over it. This file is code and is run by every command. */
import { defineConfig } from 'trainyard';

export default defineConfig({
  entry: 'agent.ts',
  tasks: 'train.jsonl',
  heldOut: 'held-out.jsonl',
  // Without `model`: the small policy that ships with Trainyard, which knows this task's words and needs no key and no network.
  runs: {
    // npx trainyard train --use quick
    quick: { steps: 5, evalEvery: 0 },
  },
});
