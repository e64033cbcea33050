/** What every command here goes by; flags win over it. This file is code and is run by every command. */
import { defineConfig } from 'trainyard';

export default defineConfig({
  entry: 'agent.ts',
  tasks: 'train.jsonl',
  heldOut: 'held-out.jsonl',
  // Measured, never trained. The key is read from the environment and does not belong here.
  engine: '{{engine}}',
  model: '{{apiModel}}',
  apiKeyEnv: '{{keyEnv}}',
  runs: {
    // npx trainyard train --use offline: the small policy that ships with Trainyard, without key or network.
    offline: { engine: 'embedded' },
  },
});
