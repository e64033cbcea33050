/**
 * Nine players play werewolves: three werewolves, three villagers, a seer, a witch and a hunter. Only the werewolves are trained; everybody
 * else is played by the default model of their role.
 *
 * Train others without touching this file: `--trainable villager,seer,witch,hunter`. A game takes many calls: give `--turns 200`.
 */
import { type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from 'trainyard/tuner';
import { type Ending, type Player, play, ROLES, type RoleName } from './game.ts';
import { opponent, seeded, shuffled } from './opponents.ts';

export default class Werewolves extends Workflow {
  override name = 'werewolves';
  override trainableTargets = ['werewolf'];

  async execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutput> {
    // All games of a task have the same seats, so that they can be compared; chance is each game's own.
    const seats = shuffled(ROLES, seeded(Number(task.metadata['seats'])));
    const chance = seeded(task.rollout.seed);
    const goodGuys = opponent('qwen-max', chance);
    const badGuys = opponent('qwen-plus', chance);
    const spoke = new Set<RoleName>();
    const trained = new Set<RoleName>();

    const players = seats.map((role, index): Player => {
      modelTuner.registerModel(role, { defaultModel: role === 'werewolf' ? badGuys : goodGuys });
      const name = `Player${index + 1}`;
      // A conversation for each player, though players of one role share its model.
      const model = modelTuner.getModel(role).thread(name);
      const answer = async (question: string): Promise<string> => {
        spoke.add(role);
        const messages = [
          { role: 'system' as const, content: `You are ${name}, a ${role}.` },
          { role: 'user' as const, content: question },
        ];
        const { text, turn } = await model.generate({ messages, maxTokens: 12, signal: task.rollout.signal });
        // `--trainable` may say otherwise than trainableTargets.
        if (turn?.trainable) trained.add(role);
        return text;
      };
      return { name, number: index + 1, role, answer };
    });

    const ending = await play(players);
    for (const line of ending.story) task.rollout.log(line);
    const isWon = trained.size > 0 && [...trained].every((role) => hasWon(role, ending));
    const byRole = Object.fromEntries([...spoke].map((role) => [role, earned(role, ending)]));
    return new WorkflowOutput({
      // Werewolves are compared with werewolves of the other games, villagers with villagers. A game is a success where those who are
      // trained won it: who earned what says so.
      reward: { value: isWon ? 1 : 0, byRole },
      metadata: { winner: ending.winner },
      logMetrics: { days: ending.days, alive: ending.alive.length },
    });
  }
}

function hasWon(role: RoleName, { winner }: Ending): boolean {
  return (role === 'werewolf') === (winner === 'werewolves');
}

/** Most of it for winning, a little for each of the role who lived to see it. */
function earned(role: RoleName, ending: Ending): number {
  const survivors = ending.alive.filter((player) => player.role === role).length;
  return (hasWon(role, ending) ? 1 : 0) + (0.2 * survivors) / ROLES.filter((other) => other === role).length;
}
