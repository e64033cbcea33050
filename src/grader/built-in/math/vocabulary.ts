/** The words, commands and units of written mathematics. Tables only. */

/** Commands that mean what a character or another command means. */
export const COMMANDS: Readonly<Record<string, string>> = {
  cdot: '*',
  times: '*',
  ast: '*',
  div: '/',
  le: '≤',
  leq: '≤',
  leqslant: '≤',
  ge: '≥',
  geq: '≥',
  geqslant: '≥',
  lt: '<',
  gt: '>',
  ne: '≠',
  neq: '≠',
  approx: '≈',
  in: '∈',
  cup: '∪',
  pm: '±',
  mp: '∓',
  infty: '∞',
  circ: '°',
  degree: '°',
  lbrace: '\\{',
  rbrace: '\\}',
  '{': '\\{',
  '}': '\\}',
  langle: '(',
  rangle: ')',
  lvert: '|',
  rvert: '|',
  vert: '|',
  lfloor: '⌊',
  rfloor: '⌋',
  lceil: '⌈',
  rceil: '⌉',
  '%': '%',
  '\\': '\\\\',
  dfrac: '\\frac',
  tfrac: '\\frac',
  cfrac: '\\frac',
  frac: '\\frac',
  dbinom: '\\binom',
  tbinom: '\\binom',
  binom: '\\binom',
  sqrt: '\\sqrt',
  pi: 'π',
  colon: ':',
  land: ',',
  prime: "'",
  emptyset: '∅',
  varnothing: '∅',
};

/** Commands and characters that only space, size or delimit. */
export const IDLE_COMMANDS = new Set(
  '! , ; : ( ) [ ] quad qquad enspace thinspace displaystyle textstyle limits left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr middle hfill nonumber mathstrut rm bf it'.split(
    ' ',
  ),
);
/** Around words. */
export const TEXT_COMMANDS = new Set('text textbf textit textrm textnormal mbox textsf texttt'.split(' '));
/** Around mathematics in another font. */
export const FONT_COMMANDS = new Set(
  'mathrm mathbf mathbb mathcal mathit mathsf boldsymbol bm operatorname boxed fbox'.split(' '),
);

export const GREEK = new Set(
  'alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell'.split(
    ' ',
  ),
);

export const MATRICES = new Set(['matrix', 'pmatrix', 'bmatrix', 'Bmatrix', 'smallmatrix', 'array']);

/** Names without a backslash that are no words. */
export const NAMES: Readonly<Record<string, string>> = {
  pi: 'π',
  sqrt: '\\sqrt',
  inf: '∞',
  infinity: '∞',
  infty: '∞',
  asin: 'arcsin',
  acos: 'arccos',
  atan: 'arctan',
};

/** Written before the number, as words or in place of their signs. */
export const CURRENCIES = new Set(['usd', 'eur', 'gbp', 'rs', 'yen', 'rupee']);

/** Words that separate the items of a list. */
export const SEPARATORS = new Set(['or', 'and']);

/** Factors that are written as words. */
export const SCALES: Readonly<Record<string, number>> = {
  hundred: 100,
  thousand: 1000,
  million: 1e6,
  billion: 1e9,
  trillion: 1e12,
};

/** Two and three letters that are a word, not a product of variables. */
export const SHORT_WORDS = new Set(
  'no yes not if is it the of to on at by for all any one two six ten odd am we he as be do so an are was but nor who per day pm win sum set new old mon tue wed thu fri sat sun'.split(
    ' ',
  ),
);

/** Each with the name that it is compared by. Words that are not here are compared as they are, without a plural s. */
export const UNITS: Readonly<Record<string, string>> = {
  mm: 'millimeter',
  millimetre: 'millimeter',
  cm: 'centimeter',
  centimetre: 'centimeter',
  m: 'meter',
  metre: 'meter',
  km: 'kilometer',
  kilometre: 'kilometer',
  in: 'inch',
  inches: 'inch',
  ft: 'foot',
  feet: 'foot',
  yd: 'yard',
  mi: 'mile',
  mg: 'milligram',
  g: 'gram',
  gm: 'gram',
  kg: 'kilogram',
  lb: 'pound',
  lbs: 'pound',
  oz: 'ounce',
  ml: 'milliliter',
  l: 'liter',
  litre: 'liter',
  s: 'second',
  sec: 'second',
  secs: 'second',
  min: 'minute',
  mins: 'minute',
  h: 'hour',
  hr: 'hour',
  hrs: 'hour',
  ms: 'millisecond',
  usd: 'dollar',
  rs: 'rupee',
  eur: 'euro',
  gbp: 'pound sterling',
  mph: 'mile per hour',
  kph: 'kilometer per hour',
  kmh: 'kilometer per hour',
  hz: 'hertz',
  pts: 'point',
  deg: 'degree',
  rad: 'radian',
  radians: 'radian',
  sq: 'square',
};

/** Words that say something of the number instead of what it counts: behind one of them it is not the answer any more. */
export const NO_UNIT = new Set(
  [
    'not no wrong incorrect false nor never except excluded impossible if but unless otherwise instead rather isn correct true right answer',
    'than less more least most about around approximately roughly nearly almost maybe perhaps possibly probably below under above over between beyond',
    'half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths',
    'hundredth hundredths thousandth thousandths millionth millionths billionth billionths tens hundreds thousands millions billions',
    'dozen dozens score scores pair pairs couple couples gross double doubled triple tripled twice thrice halved fold',
    'plus minus times negative positive factorial reciprocal inverse opposite negated root power base modulo divided multiplied',
    'zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty',
    'thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion percentage',
  ].flatMap((line) => line.split(' ')),
);
