/** The guide to any agent, run with the older OpenAI and Anthropic clients that Strands asks for. */
import { testSnippets } from '../../fixtures/gateway/guide-snippets.ts';

testSnippets(import.meta.dirname, 3);
