/**
 * One side of a conversation, played by the policy without gateway or HTTP: for measuring a base policy while it is being made.
 *
 * Prompts are made as the gateway makes them: what was sampled is extended, never tokenised again.
 */
import type { Engine } from '../src/core/policy.ts';
import type { Renderer } from '../src/tokens/renderer.ts';

const MAX_TOKENS = 64;

export interface Player {
  readonly engine: Engine;
  readonly renderer: Renderer;
  readonly temperature: number;
}

export class Seat {
  readonly #player: Player;
  readonly #system: string;
  #seed: number;
  #last: Parameters<Renderer['extend']>[0] | undefined;

  constructor(player: Player, system: string, seed: number) {
    this.#player = player;
    this.#system = system;
    this.#seed = seed;
  }

  async reply(said: string): Promise<string> {
    const { engine, renderer, temperature } = this.#player;
    const user = { role: 'user', content: said } as const;
    const promptIds =
      this.#last === undefined
        ? renderer.open([{ role: 'system', content: this.#system }, user], [])
        : renderer.extend(this.#last, [user])!;
    const sampling = { temperature, topP: 1, topK: 0, maxTokens: MAX_TOKENS };
    const { ids, stopReason } = await engine.sample({ promptIds, sampling, stopIds: renderer.stopIds, seed: this.#seed++ });
    this.#last = { promptIds, sampledIds: ids, stopReason };
    return renderer.readResponse(ids).content ?? '';
  }
}
