/** The words, commands and units of written mathematics. Tables only, and how they are written. */

/** From each spelling to what it means, made from what is meant with all its spellings. */
export function bySpelling(meanings: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return Object.fromEntries(
    Object.entries(meanings).flatMap(([meant, spellings]) => spellings.split(' ').map((spelling) => [spelling, meant])),
  );
}

/** Commands that mean what a character or another command means. */
export const COMMANDS = bySpelling({
  '*': 'cdot times ast',
  '/': 'div',
  '≤': 'le leq leqslant',
  '≥': 'ge geq geqslant',
  '<': 'lt',
  '>': 'gt',
  '≠': 'ne neq',
  '≈': 'approx',
  '∈': 'in',
  '∪': 'cup',
  '±': 'pm',
  '∓': 'mp',
  '∞': 'infty',
  '°': 'circ degree',
  '\\{': 'lbrace {',
  '\\}': 'rbrace }',
  '(': 'langle',
  ')': 'rangle',
  '|': 'lvert rvert vert',
  '⌊': 'lfloor',
  '⌋': 'rfloor',
  '⌈': 'lceil',
  '⌉': 'rceil',
  '%': '%',
  '\\\\': '\\',
  '\\frac': 'dfrac tfrac cfrac frac',
  '\\binom': 'dbinom tbinom binom',
  '\\sqrt': 'sqrt',
  π: 'pi',
  ':': 'colon',
  ',': 'land',
  "'": 'prime',
  '∅': 'emptyset varnothing',
});

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
export const NAMES = bySpelling({
  π: 'pi',
  '\\sqrt': 'sqrt',
  '∞': 'inf infinity infty',
  arcsin: 'asin',
  arccos: 'acos',
  arctan: 'atan',
});

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
export const UNITS = bySpelling({
  millimeter: 'mm millimetre',
  centimeter: 'cm centimetre',
  meter: 'm metre',
  kilometer: 'km kilometre',
  inch: 'in inches',
  foot: 'ft feet',
  yard: 'yd',
  mile: 'mi',
  milligram: 'mg',
  gram: 'g gm',
  kilogram: 'kg',
  pound: 'lb lbs',
  ounce: 'oz',
  milliliter: 'ml',
  liter: 'l litre',
  second: 's sec secs',
  minute: 'min mins',
  hour: 'h hr hrs',
  millisecond: 'ms',
  dollar: 'usd',
  rupee: 'rs',
  euro: 'eur',
  'pound sterling': 'gbp',
  'mile per hour': 'mph',
  'kilometer per hour': 'kph kmh',
  hertz: 'hz',
  point: 'pts',
  degree: 'deg',
  radian: 'rad radians',
  square: 'sq',
});

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
