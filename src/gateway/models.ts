/** The one model there is, as OpenAI's and Anthropic's clients ask for it. Anthropic's always name the version of their API. */
import { anthropicModels } from './dialects/messages.ts';
import { refused } from './http-errors.ts';

export function modelList(name: string, isAnthropic: boolean): object {
  return isAnthropic ? anthropicModels(name) : { object: 'list', data: [openAIModel(name)] };
}

export function modelNamed(wanted: string, name: string, isAnthropic: boolean): object {
  if (wanted !== name) throw refused('not_found', `no model ${JSON.stringify(wanted.slice(0, 100))}`);
  if (!isAnthropic) return openAIModel(name);
  return (anthropicModels(name) as { data: [object] }).data[0];
}

function openAIModel(id: string): object {
  return { id, object: 'model', created: 0, owned_by: 'trainyard' };
}
