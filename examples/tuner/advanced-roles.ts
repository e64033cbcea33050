/**
 * Two agents, each in a role of its own: a clerk who takes orders is trained, the customer is played by a default model.
 *
 * Train the customer instead, without touching this file: `--trainable customer`.
 */
import { type ModelMessage, ToolLoopAgent } from 'ai';
import { type ModelTuner, Workflow, WorkflowOutput, type WorkflowTask } from 'trainyard/tuner';

const MAX_TURNS = 4;

export default class Desk extends Workflow {
  override name = 'desk_workflow';
  override trainableTargets = ['clerk'];

  async execute(task: WorkflowTask, modelTuner: ModelTuner): Promise<WorkflowOutput> {
    const want = String(task.metadata['want']);
    modelTuner.registerModel('clerk', { defaultModel: ask });
    modelTuner.registerModel('customer', { defaultModel: insist });

    const clerk = talker(modelTuner, 'clerk', 'You are a clerk. Take the order.');
    const customer = talker(modelTuner, 'customer', `You are a customer. You want ${want}.`);
    let said = task.task.mainQuery;
    for (let turn = 0; turn < MAX_TURNS; turn++) {
      const reply = await clerk(said, task.rollout.signal);
      if (reply.startsWith('Order:')) {
        const isRight = reply === `Order: you want ${want}.`;
        return new WorkflowOutput({ reward: isRight ? 1 : 0, isSuccess: isRight, logMetrics: { questions: turn } });
      }
      said = await customer(reply, task.rollout.signal);
    }
    return new WorkflowOutput({ reward: 0, isSuccess: false, logMetrics: { questions: MAX_TURNS } });
  }
}

/** An agent of one role: hears what the other said, remembers it, replies. */
function talker(modelTuner: ModelTuner, role: string, instructions: string) {
  const agent = new ToolLoopAgent({ id: role, instructions, model: modelTuner.getModel(role) });
  const messages: ModelMessage[] = [];
  return async (said: string, abortSignal: AbortSignal): Promise<string> => {
    messages.push({ role: 'user', content: said });
    const { text } = await agent.generate({ messages, abortSignal });
    messages.push({ role: 'assistant', content: text });
    return text;
  };
}

/** Default models may be programs, as here, or servers: `{ name: 'qwen-max', baseURL, apiKey }`. */
function insist({ messages }: { readonly messages: readonly { readonly content: string | null }[] }): string {
  return messages[0]?.content?.replace('You are a customer. You want', 'I want') ?? '';
}

function ask(): string {
  return 'How many?';
}
