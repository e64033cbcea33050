/**
 * The triage and the desk agent played locally, without gateway or grader: measures a base policy while it is being made.
 *
 * Does what examples/triage and examples/desk do. Held-out tasks are drawn here, with another seed than the examples', so that
 * the examples' own stay unseen until a run reports on them.
 */
import { CLERK_PROMPT, customerPrompt, drawOpening, drawWant, orderText, wantText } from './desk-domain.ts';
import { type Random, seededRandom } from './random.ts';
import { type Player, Seat } from './seat.ts';
import { drawMessage, queueIn, TRIAGE_PROMPT } from './triage-domain.ts';

const MAX_CLERK_TURNS = 4;

/** Share of held-out messages that are sorted into the right queue. */
export function triageSuccess(player: Player, seed: number, size: number): Promise<number> {
  return share(seed, size, async (random, index) => {
    const { text, wanted } = drawMessage(random, 'held-out');
    return queueIn(await new Seat(player, TRIAGE_PROMPT, index).reply(text)) === wanted;
  });
}

/** Share of held-out customers who get what they want. The customer is always greedy, as in the example. */
export function deskSuccess(player: Player, seed: number, size: number): Promise<number> {
  return share(seed, size, async (random, index) => {
    const want = drawWant(random, 'held-out');
    const clerk = new Seat(player, CLERK_PROMPT, index * MAX_CLERK_TURNS);
    const customer = new Seat({ ...player, temperature: 0 }, customerPrompt(wantText(want)), 0);
    let said = drawOpening(random, want);
    for (let turn = 0; turn < MAX_CLERK_TURNS; turn++) {
      const reply = await clerk.reply(said);
      if (reply.startsWith('Order:')) return reply === orderText(want);
      said = await customer.reply(reply);
    }
    return false;
  });
}

/** All at once. Each attempt draws its task from a generator of its own, so the order of completion does not matter. */
async function share(seed: number, size: number, attempt: (random: Random, index: number) => Promise<boolean>): Promise<number> {
  const attempts = Array.from({ length: size }, (_, index) => attempt(seededRandom(seed * 100_003 + index), index));
  return (await Promise.all(attempts)).filter(Boolean).length / size;
}
