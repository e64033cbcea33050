/**
 * The environment variables by which stock clients find the policy: `new OpenAI()` and `new Anthropic()` without arguments, and most
 * programs built on them.
 */

/** Of one seat of one rollout: both are worth nothing when it ends. */
export function agentEnvironment({
  baseURL,
  apiKey,
}: {
  readonly baseURL: string;
  readonly apiKey: string;
}): Readonly<Record<string, string>> {
  return {
    OPENAI_BASE_URL: baseURL,
    OPENAI_API_KEY: apiKey,
    // Its clients add /v1 by themselves.
    ANTHROPIC_BASE_URL: baseURL.replace(/\/v1$/, ''),
    ANTHROPIC_API_KEY: apiKey,
  };
}
