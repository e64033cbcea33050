/**
 * Makes the tokenizer of the base policy: tokenizer.json and tokenizer_config.json as Hugging Face libraries read them.
 *
 * A byte-level BPE of 512 tokens, so any text can be encoded; the merges come from pretraining transcripts alone. Every digit is
 * a token of its own: numbers are copied digit by digit. The chat template is the file chat-template.jinja beside this one.
 */
import { readFileSync } from 'node:fs';
import { trainBytePairEncoding } from './byte-pair-encoding.ts';
import { renderConversation } from './conversation-text.ts';
import { CLEAN, drawConversation, NOISY } from './pretraining-data.ts';
import { seededRandom } from './random.ts';

export const VOCABULARY_SIZE = 640;
export const CONTEXT_LENGTH = 512;
export const END_OF_TURN = '<|im_end|>';
const PADDING = '<|endoftext|>';

/** In order of their ids. Tool-call tags are ordinary output of the policy, so they are not `special`. */
const ADDED_TOKENS = [
  { content: PADDING, special: true },
  { content: '<|im_start|>', special: true },
  { content: END_OF_TURN, special: true },
  { content: '<tool_call>', special: false },
  { content: '</tool_call>', special: false },
];

/** Letters with one leading space, single digits, punctuation with one leading space, white space. */
const WORD_PATTERN = ' ?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+';

const TRANSCRIPTS = 10_000;

export interface TokenizerFiles {
  readonly tokenizer: object;
  readonly tokenizerConfig: object;
}

export function trainTokenizer(seed: number): TokenizerFiles {
  const reserved = ADDED_TOKENS.map((token) => token.content);
  const { vocabulary, merges } = trainBytePairEncoding(corpus(seed), {
    wordPattern: new RegExp(WORD_PATTERN, 'gu'),
    reserved,
    vocabularySize: VOCABULARY_SIZE,
  });
  return { tokenizer: tokenizerJson(vocabulary, merges), tokenizerConfig: tokenizerConfigJson() };
}

/** Transcripts cut at the added tokens, which the BPE never sees. The headers hardly differ: one in twenty keeps its own. */
function* corpus(seed: number): Generator<string> {
  const random = seededRandom(seed);
  const addedToken = /<\|endoftext\|>|<\|im_start\|>|<\|im_end\|>|<tool_call>|<\/tool_call>/;
  for (let i = 0; i < TRANSCRIPTS; i++) {
    const conversation = drawConversation(random, i % 2 === 0 ? NOISY : CLEAN);
    const [header = '', ...rest] = renderConversation(conversation).map((piece) => piece.text);
    yield* (i % 20 === 0 ? [header, ...rest] : rest).join('').split(addedToken);
  }
}

function tokenizerJson(vocab: Readonly<Record<string, number>>, merges: readonly (readonly [string, string])[]): object {
  const plain = { single_word: false, lstrip: false, rstrip: false, normalized: false };
  const byteLevel = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false };
  const split = { type: 'Split', pattern: { Regex: WORD_PATTERN }, behavior: 'Isolated', invert: false };
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: ADDED_TOKENS.map(({ content, special }, id) => ({ id, content, ...plain, special })),
    normalizer: null,
    pre_tokenizer: { type: 'Sequence', pretokenizers: [split, byteLevel] },
    post_processor: null,
    decoder: byteLevel,
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab,
      merges,
    },
  };
}

function tokenizerConfigJson(): object {
  return {
    tokenizer_class: 'PreTrainedTokenizerFast',
    bos_token: null,
    eos_token: END_OF_TURN,
    pad_token: PADDING,
    unk_token: null,
    clean_up_tokenization_spaces: false,
    model_max_length: CONTEXT_LENGTH,
    chat_template: readFileSync(new URL('./chat-template.jinja', import.meta.url), 'utf8'),
  };
}
