/** The guide to any agent, run. */
import { testSnippets } from '../../fixtures/gateway/guide-snippets.ts';

testSnippets(import.meta.dirname, 9);
