/** When something is an incident, whose it is, and when it is over. */

import type { GatewayError } from '../lib/errors.ts';
import type { IncidentKind } from './incident.ts';
import { FAILED, GOOD, type ProviderWatch, stepOf, type Watch } from './watch.ts';

/** The newest 15 s, and what there is of the current step. */
const NEWEST_STEPS = 4;
const MIN_TRIES = 5;
/**
 * Failures in a row that are enough if nothing has succeeded for a minute, so that a quiet gateway
 * tells too.
 */
const MIN_ROW_WITHOUT_GOOD = 3;
/** What happens again and again is over when it has not for so long. */
export const QUIET_MS = 15_000;
/** Nobody asks for it any more. The figures of the page go back as far. */
const FORGOTTEN_MS = 900_000;

/** The circuits of one provider that are open. */
export type OpenCircuits = readonly { readonly model: string | undefined }[];

/**
 * Returns whose incident it is: the provider's if all models that are asked fail, else that of each
 * model that does.
 */
export function failingOf(
  provider: ProviderWatch,
  step: number,
  open: OpenCircuits,
): readonly Watch[] {
  const models = [...provider.models.values()];
  const isBroken = (one: Watch) =>
    one.incident !== undefined && (isFailing(one, step) || isKeptAway(one, open));
  const alone = models.filter(isBroken);
  if (!provider.incident || (alone.length === 0 && !isBroken(provider))) return alone;
  const isSpread = alone.length === 0 && (provider.inRow >= MIN_TRIES || isIll(provider, step));
  const others = models.filter((one) => !alone.includes(one));
  const isWhole =
    isSpread || provider.incident.kind === 'unreachable' || !others.some((one) => works(one, step));
  return isWhole ? [provider] : alone;
}

/**
 * Returns whether its incident has ended: it is well and no open circuit keeps requests away, or
 * nobody asks any more.
 */
export function isOver(watch: Watch, nowMs: number, open: OpenCircuits): boolean {
  const { lastMs, sinceMs } = watch.incident!;
  const isNew = nowMs - sinceMs < QUIET_MS;
  const isForgotten = nowMs - lastMs > FORGOTTEN_MS;
  return isForgotten || (isWell(watch, stepOf(nowMs)) && !isNew && !isKeptAway(watch, open));
}

/** Returns the tries of the latest steps, or of the last minute. */
function triesOf(watch: Watch, step: number, steps?: number) {
  const sums = watch.sums(step, steps);
  return { tries: sums[GOOD]! + sums[FAILED]!, failed: sums[FAILED]! };
}

/** Under a tenth of the newest tries have failed. */
export function isWell(watch: Watch, step: number): boolean {
  const { tries, failed } = triesOf(watch, step, NEWEST_STEPS);
  return failed * 10 < tries;
}

function isFailing(watch: Watch, step: number): boolean {
  const { tries, failed } = triesOf(watch, step);
  const minRow = failed === tries ? MIN_ROW_WITHOUT_GOOD : MIN_TRIES;
  return watch.inRow >= minRow || (tries >= MIN_TRIES && failed * 2 >= tries);
}

/** Its circuit is open; of a provider, that of one of its models. */
function isKeptAway(watch: Watch, open: OpenCircuits): boolean {
  return open.some(({ model }) => (watch.model ?? model) === model);
}

/** Half of its tries have failed, without those of models that are well again. */
function isIll(provider: ProviderWatch, step: number): boolean {
  const ofModels = [...provider.models.values()].filter((one) => isWell(one, step));
  const well = ofModels.map((one) => triesOf(one, step));
  const sum = (name: 'tries' | 'failed') => well.reduce((all, one) => all + one[name], 0);
  const { tries, failed } = triesOf(provider, step);
  return (failed - sum('failed')) * 2 >= tries - sum('tries');
}

/** It is asked, and mostly answers, or does so again after an outage. */
function works(watch: Watch, step: number): boolean {
  const { tries, failed } = triesOf(watch, step);
  return isWell(watch, step) || (tries > 0 && failed * 2 < tries);
}

/** Returns what of the gateway's own the failure is about, if anything. */
export function ownKindOf({ details }: GatewayError): IncidentKind | undefined {
  if (details.limit === 'memory') return 'memory';
  return details.problem === 'descriptors' ? 'descriptors' : undefined;
}
