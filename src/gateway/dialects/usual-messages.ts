/**
 * Recognises Chat messages in the form that nearly all clients send them: text as a string, calls with exactly the fields they have.
 *
 * A conversation is read anew with every turn, and the schema costs more than everything else that is done with its words. What is
 * recognised here is what the schema accepts and leaves as it is; anything else is the schema's to judge and to explain.
 */
import { isObject } from '../../core/json.ts';

export function areUsual(messages: unknown): boolean {
  return Array.isArray(messages) && messages.length > 0 && messages.every(isUsual);
}

/** Fields that no one reads may hold anything, as in the schema. */
function isUsual(message: unknown): boolean {
  if (!isObject(message)) return false;
  const { role, content, name, tool_calls: calls } = message;
  if (name != null && typeof name !== 'string') return false;
  if (role === 'assistant') {
    const { reasoning, reasoning_content: thought } = message;
    if ((reasoning != null && typeof reasoning !== 'string') || (thought != null && typeof thought !== 'string')) return false;
    const isCalling = Array.isArray(calls) && calls.length > 0 && calls.every(isUsualCall);
    return typeof content === 'string' ? calls == null || isCalling : content == null && isCalling;
  }
  if (role === 'tool') return isText(content) && (message['tool_call_id'] == null || typeof message['tool_call_id'] === 'string');
  return (role === 'system' || role === 'user' || role === 'developer') && typeof content === 'string';
}

const isText = (content: unknown): boolean => content == null || typeof content === 'string';

/** Calls are kept as they are, so one with a field more or less is not usual. */
function isUsualCall(call: unknown): boolean {
  if (!isObject(call) || typeof call['id'] !== 'string' || call['type'] !== 'function' || !isObject(call['function']))
    return false;
  const { name, arguments: given } = call['function'];
  const fields = Object.keys(call).length === 3 && Object.keys(call['function']).length === 2;
  return fields && typeof name === 'string' && typeof given === 'string';
}
