/**
 * The verdict on the last minute. Too many failed requests without an incident get figures, not a
 * verdict.
 */

import { formatCount, formatOf, type Icon, isSlowKind, join, type Notice } from './notice.ts';

/** "All well" needs a share of failed requests below this. */
const FAILED_SHARE = 0.01;
const MAX_NAMED = 5;
/** From this number on, tries that clients gave up say more than a user who stops an answer. */
const MIN_GIVEN_UP = 3;
/** An incident's failures leave the last minute's figures so long after its end. */
const RECENT_MS = 60_000;

/** How requests have ended. Absent counts are 0. */
export interface Counts {
  readonly requests?: number | undefined;
  readonly failed?: number | undefined;
  readonly rejected?: number | undefined;
  /** Refused by the client's own limits. */
  readonly limited?: number | undefined;
  /** Left by their clients. */
  readonly client_closed?: number | undefined;
}

interface Judged {
  readonly icon: Icon;
  readonly count: number;
  readonly total: number;
  readonly end: string;
}

/** A state in words. */
type State = readonly [icon: Icon, text: string, detail: string];

interface Verdict {
  readonly icon: Icon;
  readonly title: string;
  readonly notes: readonly string[];
  /** The requests to list: `Failed`, or `All` for other figures. */
  readonly list: 'All' | 'Failed' | undefined;
}

/** The facts from which a verdict is made. */
export interface Situation {
  readonly minute: Counts;
  /** The requests of the last 15 minutes. */
  readonly all: Counts;
  /** The last minute of each provider. */
  readonly providers: Readonly<Record<string, Counts>>;
  /** In the order of `sortNotices`. */
  readonly lasting: readonly Notice[];
  readonly ended: readonly Notice[];
  /** Providers with failures that may yet become an incident. */
  readonly suspected: ReadonlySet<string>;
  /**
   * When a try at each provider last failed; under `undefined` the gateway's latest own failure
   * that belongs to no incident. On the clock of `performance.now()`.
   */
  readonly failedAtMs: ReadonlyMap<string | undefined, number>;
  /** When the last request ended, in ISO 8601. */
  readonly last: string | undefined;
  /** Who holds at least half of the memory for bodies, as a sentence. */
  readonly held?: string | undefined;
  /** On the clock of `performance.now()`. */
  readonly nowMs: number;
}

const plural = (count: number, noun: string) =>
  `${formatCount(count)} ${noun}${count === 1 ? '' : 's'}`;
const percent = (part: number, all: number) => `${((100 * part) / all).toFixed(1)} %`;

/** Returns the number of requests, without refusals by a client's own limits. */
const servedOf = ({ requests = 0, limited = 0 }: Counts) => requests - limited;

const NO_FIGURES = { count: 0, total: 0, end: '' };

const failedOf = (counts: Counts): Judged => {
  return { icon: 'warn', count: counts.failed ?? 0, total: servedOf(counts), end: 'failed' };
};

/**
 * Judges counts: `off` without requests, `good` if under a hundredth failed and some requests were
 * answered, else `warn` with the figures, such as 7 of 389 `failed`.
 */
export function judgeCounts(counts: Counts): Judged {
  const { requests = 0, failed = 0, rejected = 0, limited = 0, client_closed: left = 0 } = counts;
  const served = servedOf(counts);
  if (requests === 0) return { ...NO_FIGURES, icon: 'off' };
  if (failed > 0 && failed >= FAILED_SHARE * served) return failedOf(counts);
  if (failed + rejected + left < served) return { ...NO_FIGURES, icon: 'good' };
  const count = Math.max(rejected, limited, left);
  const end = count === rejected ? 'rejected' : count === limited ? 'refused' : 'left by clients';
  return { icon: 'warn', count, total: requests, end };
}

/** Returns the last minute's sentence: `397 requests in the last minute, none failed.` */
function minuteText(minute: Counts): string {
  const { failed = 0 } = minute;
  const served = servedOf(minute);
  if (served === 0) return 'No request in the last minute.';
  if (failed === 0) return `${plural(served, 'request')} in the last minute, none failed.`;
  return `${formatOf(failed, served)} in the last minute, ${percent(failed, served)}.`;
}

/**
 * Returns the latest incident of a provider whose failures of the last minute all belong to it. An
 * incident without affected requests, such as `reload` or `slow`, explains no failure.
 */
function overOf(id: string | undefined, { ended, failedAtMs, suspected, nowMs }: Situation) {
  if (id !== undefined && suspected.has(id)) return undefined;
  const latest = ended.find(
    (one) => one.provider === id && one.client === undefined && one.failed + one.answered > 0,
  );
  const { endedAtMs = -Infinity } = latest ?? {};
  const isRecent = nowMs - endedAtMs < RECENT_MS;
  return isRecent && (failedAtMs.get(id) ?? -Infinity) <= endedAtMs ? latest : undefined;
}

/** Explains failures of the last minute without a lasting incident. Absent sentences are ''. */
function explain(situation: Situation) {
  const failing = Object.entries(situation.providers)
    .map(([id, { failed = 0 }]) => ({ id, failed, incident: overOf(id, situation) }))
    .filter(({ failed }) => failed > 0)
    .toSorted((a, b) => b.failed - a.failed);
  const few = failing.filter(({ incident }) => !incident);
  const ended = [...failing.map(({ incident }) => incident), overOf(undefined, situation)]
    .filter((one) => one !== undefined)
    .toSorted((a, b) => b.endedAtMs! - a.endedAtMs!);
  const subjects = join(ended.map((one) => `${one.subject}: ${one.title}`));
  const names = few.slice(0, MAX_NAMED).map(({ id, failed }) => `${id} ${formatCount(failed)}`);
  const ownFailureAtMs = situation.failedAtMs.get(undefined) ?? -Infinity;
  const hasOwnFailure = situation.nowMs - ownFailureAtMs < RECENT_MS;
  return {
    /** When the last incident ended, if all failures belong to incidents that are over. */
    over: few.length === 0 && !hasOwnFailure ? ended[0]?.ended : undefined,
    subjects: subjects && `${subjects}.`,
    overText: subjects && `Over since ${ended[0]!.ended}: ${subjects}.`,
    tooFew: names.length > 0 ? `Too few for an incident: ${join(names)}.` : '',
  };
}

const figuresOf = ({ count, total, end }: Judged, noun = '') =>
  join([formatOf(count, total), noun, end], ' ');

const hasOnlyFailed = ({ requests = 0, failed }: Counts) => requests > 0 && failed === requests;
const isGivenUp = ({ requests = 0, failed = 0, client_closed: left = 0 }: Counts) =>
  left >= MIN_GIVEN_UP && failed + left === requests;

type Judgement = readonly [
  icon: Icon,
  title: string,
  notes: readonly string[],
  list?: Verdict['list'],
];

/** Returns amber counts of requests, and which requests to list for them. */
function amberOf(judged: Judged, ...notes: string[]): Judgement {
  const list = judged.end === 'failed' ? 'Failed' : 'All';
  return ['warn', figuresOf(judged, 'requests'), notes, list];
}

/** Judges the last minute. */
function judgeMinute(situation: Situation, lasting: readonly Notice[]): Judgement {
  const { all, last, minute, providers } = situation;
  const told = minuteText(minute);
  if (lasting.some(({ icon }) => icon === 'bad')) return ['bad', 'Requests fail', [told]];
  const judged = judgeCounts(minute);
  const failed = failedOf(minute);
  const { over, overText, subjects, tooFew } = explain(situation);
  if (judged.icon === 'warn') {
    const share = `${percent(judged.count, judged.total)} of the last minute.`;
    if (judged.end !== 'failed' || lasting.length > 0) return amberOf(judged, share);
    if (over === undefined) return amberOf(judged, share, overText, tooFew);
    const before = `Before, ${figuresOf(judged, 'requests')} in the last minute.`;
    return ['good', `Over since ${over}`, [subjects, before]];
  }
  if (lasting.length > 0) {
    const hasOthers = lasting.some((one) => one.failed === 0 && one.answered > 0);
    const title = hasOthers ? 'Other providers answer' : plural(lasting.length, 'incident');
    return ['warn', title, [told]];
  }
  if (judged.icon === 'off') {
    const quiet = last ? `The last one ended at ${last}.` : 'None has ended since the start.';
    const former = failedOf(all);
    const before = former.count > 0 ? `Of the last 15 minutes ${figuresOf(former)}.` : '';
    return ['off', 'No traffic', [told, quiet, before]];
  }
  const minutes = Object.values(providers);
  if (failed.count > 0 && over === undefined && minutes.some(hasOnlyFailed)) {
    return amberOf(failed, overText, tooFew);
  }
  if (!minutes.some(isGivenUp)) return ['good', 'All well', [told]];
  return amberOf({ ...failed, count: minute.client_closed ?? 0, end: 'left by clients' });
}

/** Returns the verdict on the last minute: an icon, a title, and sentences behind it. */
export function verdictOf(situation: Situation): Verdict {
  const { lasting } = situation;
  const incidents = lasting.filter(({ client }) => client === undefined);
  const limited = lasting.length - incidents.length;
  const [icon, title, notes, list] = judgeMinute(situation, incidents);
  const more = join([
    incidents.length > 0 && plural(incidents.length, 'incident'),
    limited > 0 && `${plural(limited, 'client')} at its limit`,
  ]);
  return {
    icon,
    title,
    notes: [...notes, more === title || !more ? '' : `${more}.`, situation.held ?? ''].filter(
      Boolean,
    ),
    list,
  };
}

/** Returns a provider's states: its lasting incidents, or its last minute. */
export function statesOf(id: string, situation: Situation): State[] {
  const lasting = situation.lasting.filter(({ provider }) => provider === id);
  if (lasting.length > 0) {
    return lasting.map(({ icon, kind, models, title, causes: [cause = ''] }) => {
      return [icon, join([join(models ?? []), title], ': '), isSlowKind(kind) ? cause : ''];
    });
  }
  const judged = judgeCounts(situation.providers[id] ?? {});
  const over = overOf(id, situation);
  if (judged.icon === 'off') return [['off', 'Not asked', '']];
  if (judged.icon === 'warn' && !(judged.end === 'failed' && over)) {
    return [['warn', figuresOf(judged), 'last minute']];
  }
  const former = situation.ended.find(({ failed, provider }) => provider === id && failed > 0);
  const count = former && `${formatCount(former.failed)} failed until ${former.ended}`;
  return [['good', 'Good', over ? `over since ${over.ended}` : (count ?? '')]];
}

/**
 * Returns the colour of a model's or a client's row: of the worst incident that affects it, or
 * amber for failures without one.
 */
export function markOf(
  row: Counts,
  { lasting, minute }: Situation,
  isAffected: (affected: Notice['affected'][number]) => boolean,
): Icon | undefined {
  const worst = lasting.find((one) => one.client === undefined && one.affected.some(isAffected));
  const isFailing = judgeCounts(minute).end === 'failed' && judgeCounts(row).end === 'failed';
  return worst?.icon ?? (isFailing ? 'warn' : undefined);
}
