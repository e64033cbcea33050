/**
 * Property tests draw the same cases on every machine, so that a red run can be run again. `npm run test:properties` draws new ones.
 */
import fc from 'fast-check';

const given = process.env.PROPERTY_SEED;
if (given !== 'random') fc.configureGlobal({ seed: Number(given ?? 20_261_115) });
