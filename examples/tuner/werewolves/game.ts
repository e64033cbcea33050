/**
 * The rules of werewolves for nine players: nights, days, and who wins. Knows nothing about models: whoever plays is asked in words and
 * answers in words. An answer that names nobody who may be named is an abstention, so any player can play, however badly.
 */
export const ROLES = ['werewolf', 'werewolf', 'werewolf', 'villager', 'villager', 'villager', 'seer', 'witch', 'hunter'] as const;
export type RoleName = (typeof ROLES)[number];

export interface Player {
  readonly name: string;
  readonly number: number;
  readonly role: RoleName;
  /** Asks the player; gives what was said. */
  answer(question: string): Promise<string>;
}

export interface Ending {
  readonly winner: 'werewolves' | 'village';
  readonly days: number;
  readonly alive: readonly Player[];
  /** What happened, a line each. */
  readonly story: readonly string[];
}

/** Nobody plays longer: a village that is still there has won. */
const MOST_DAYS = 5;
/** Of what was said in public, so that prompts stay short. */
const MOST_SAID = 24;

export async function play(players: readonly Player[]): Promise<Ending> {
  const game = new Game(players);
  for (let day = 1; day <= MOST_DAYS && game.winner === undefined; day++) {
    game.day = day;
    await game.night();
    if (game.winner === undefined) await game.discussion();
    if (game.winner === undefined) await game.vote();
  }
  return { winner: game.winner ?? 'village', days: game.day, alive: game.alive, story: game.story };
}

class Game {
  day = 0;
  alive: readonly Player[];
  readonly story: string[] = [];
  /** What the seer found out. */
  #seen = '';
  #hasAntidote = true;
  #hasPoison = true;
  #said: string[] = [];

  constructor(players: readonly Player[]) {
    this.alive = players;
  }

  get winner(): Ending['winner'] | undefined {
    const werewolves = this.#living('werewolf').length;
    if (werewolves === 0) return 'village';
    return werewolves >= this.alive.length - werewolves ? 'werewolves' : undefined;
  }

  async night(): Promise<void> {
    const victim = await this.#attack();
    await this.#foresee();
    const { isSaved, poisoned } = await this.#brew(victim);
    if (victim !== undefined && !isSaved) await this.#dies(victim, 'was killed at night');
    if (poisoned !== undefined && this.alive.includes(poisoned)) await this.#dies(poisoned, 'was poisoned', false);
  }

  /** Everybody says something, one after the other, and hears those before. */
  async discussion(): Promise<void> {
    this.#said = [];
    for (const player of this.alive) {
      const said = await player.answer(`${this.#scene(player)}${this.#heard()} What do you say?`);
      this.#said.push(
        `${player.number}: ${said
          .replaceAll(/[^ -~]+/g, ' ')
          .trim()
          .slice(0, MOST_SAID)}`,
      );
    }
  }

  async vote(): Promise<void> {
    const votes: Player[] = [];
    for (const player of this.alive) {
      const others = this.alive.filter((other) => other !== player);
      const named = await this.#choice(player, `${this.#heard()} Vote one out:`, others);
      if (named !== undefined) votes.push(named);
    }
    const out = mostNamed(votes);
    if (out === undefined) this.story.push(`day ${this.day}: nobody was voted out`);
    else await this.#dies(out, 'was voted out');
  }

  /** The werewolves choose together; each knows whom the others named. */
  async #attack(): Promise<Player | undefined> {
    const prey = this.alive.filter(({ role }) => role !== 'werewolf');
    const named: Player[] = [];
    for (const werewolf of this.#living('werewolf')) {
      const pack = named.length === 0 ? '' : ` Named: ${numbers(named)}.`;
      const victim = await this.#choice(werewolf, `${pack} Kill one:`, prey);
      if (victim !== undefined) named.push(victim);
    }
    return mostNamed(named) ?? named[0];
  }

  async #foresee(): Promise<void> {
    const [seer] = this.#living('seer');
    if (seer === undefined) return;
    const others = this.alive.filter((other) => other !== seer);
    const looked = await this.#choice(seer, ' Look at one:', others);
    if (looked !== undefined) this.#seen += ` ${looked.number} is ${looked.role === 'werewolf' ? 'a werewolf' : 'good'}.`;
  }

  async #brew(victim: Player | undefined): Promise<{ readonly isSaved: boolean; readonly poisoned: Player | undefined }> {
    const [witch] = this.#living('witch');
    if (witch === undefined || !(this.#hasAntidote || this.#hasPoison)) return { isSaved: false, poisoned: undefined };
    const dying = victim !== undefined && this.#hasAntidote ? ` ${victim.number} dies. Say save,` : '';
    const others = this.#hasPoison ? this.alive.filter((other) => other !== witch && other !== victim) : [];
    const said = await witch.answer(`${this.#scene(witch)}${dying} or poison one, or none: ${numbers(others)}`);
    const isSaved = dying !== '' && /\bsave\b/i.test(said);
    const poisoned = isSaved ? undefined : numberIn(said, others);
    if (isSaved) this.#hasAntidote = false;
    if (poisoned !== undefined) this.#hasPoison = false;
    return { isSaved, poisoned };
  }

  /** A dying hunter shoots, unless it was poison. */
  async #dies(player: Player, how: string, mayShoot = true): Promise<void> {
    this.alive = this.alive.filter((other) => other !== player);
    this.story.push(`day ${this.day}: ${player.name} (${player.role}) ${how}`);
    if (player.role !== 'hunter' || !mayShoot || this.alive.length === 0) return;
    const shot = await this.#choice(player, ' You die. Shoot one:', this.alive);
    if (shot !== undefined) await this.#dies(shot, 'was shot by the hunter');
  }

  async #choice(player: Player, question: string, among: readonly Player[]): Promise<Player | undefined> {
    return numberIn(await player.answer(`${this.#scene(player)}${question} ${numbers(among)}`), among);
  }

  /** What a player knows, in a few words. */
  #scene(player: Player): string {
    const pack = player.role === 'werewolf' ? ` Werewolves: ${numbers(this.#living('werewolf'))}.` : '';
    return `Day ${this.day}. Alive: ${numbers(this.alive)}.${pack}${player.role === 'seer' ? this.#seen : ''}`;
  }

  #heard(): string {
    return this.#said.length === 0 ? '' : ` Said: ${this.#said.join(', ')}.`;
  }

  #living(role: RoleName): readonly Player[] {
    return this.alive.filter((player) => player.role === role);
  }
}

/** The last number in an answer, if it is one of theirs. */
function numberIn(said: string, among: readonly Player[]): Player | undefined {
  const number = said.match(/\d+/g)?.at(-1);
  return among.find((player) => String(player.number) === number);
}

/** Undefined where two were named as often. */
function mostNamed(named: readonly Player[]): Player | undefined {
  const counts = Map.groupBy(named, (player) => player);
  const [first, second] = [...counts.values()].toSorted((a, b) => b.length - a.length);
  return first !== undefined && first.length > (second?.length ?? 0) ? first[0] : undefined;
}

function numbers(players: readonly Player[]): string {
  return players.map(({ number }) => number).join(' ');
}
