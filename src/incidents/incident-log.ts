/**
 * Writes the lines `incident` and `incident ended`, and repeats them, because operators read the
 * latest lines of the log, which access lines fill within seconds.
 */

import type { Logger } from '../lib/log.ts';
import type { IncidentKind } from '../request/incident-kind.ts';
import type { Incident } from './incident.ts';
import { wordsOf } from './notice.ts';

/** A line is repeated after this time, however few lines the log has. */
const REPEATED_MS = 60_000;
/** A line is repeated once the log has so many other lines behind it. */
const REPEATED_LINES = 40;
/** The least time between two equal lines, because a busy gateway logs 40 lines at once. */
const LEAST_REPEATED_MS = 2000;
/** So long is the line of an ended incident repeated. */
const ENDED_TOLD_MS = 60_000;

/** Where the latest of several equal lines is. */
export interface Place {
  readonly atMs: number;
  /** How many other lines the log had. */
  readonly lines: number;
}

/** Returns whether other lines have pushed this place out of the log's latest lines. */
export function isPushedAway(place: Place, lines: number): boolean {
  const isFar = lines - place.lines >= REPEATED_LINES;
  return isFar && performance.now() - place.atMs >= LEAST_REPEATED_MS;
}

/** A logger with the number of its lines so far. */
export type CountingLogger = Logger & { readonly lines: number };

type Facts = ReturnType<Incident['toFacts']>;

/** The line of an ended incident. */
interface EndedLine {
  readonly facts: Facts;
  readonly firstAtMs: number;
  place: Place;
}

/** The lines of incidents. A subject is a provider, or the gateway for a kind of incident. */
export class IncidentLog {
  readonly #logger: CountingLogger;
  /** The latest line of each subject and kind. */
  readonly #places = new WeakMap<object, Map<IncidentKind, Place>>();
  /** Ended incidents for a minute, by provider, because a reload replaces a provider's subject. */
  readonly #ended = new Map<object | string, EndedLine>();
  #ownLines = 0;

  constructor(logger: CountingLogger) {
    this.#logger = logger;
  }

  /** Logs a lasting incident: its first line, that of a further kind, or a repeated line. */
  tell(subject: object, incident: Incident, facts: Facts): void {
    this.#ended.delete(incident.provider ?? subject);
    const { kind } = facts;
    // Its line would be lost too.
    if (kind === 'log_lines') return;
    const places = this.#places.get(subject) ?? new Map<IncidentKind, Place>();
    this.#places.set(subject, places);
    const isFurtherKind = incident.logged.size > 0 && !incident.logged.has(kind);
    if (!isFurtherKind && !this.#isDue(places.get(kind), REPEATED_MS)) return;
    incident.logged.add(kind);
    const [what, action, fault] = wordsOf(facts);
    places.set(kind, this.#write('warn', 'incident', { what, fault, action, ...facts }));
  }

  /** Logs the end of an incident of which the log has a line. */
  tellEnd(subject: object, incident: Incident, facts: Facts): void {
    if (incident.logged.size === 0) return;
    const place = this.#writeEnd(facts);
    // The next incident is told at once, because the log would end with the end of this incident.
    this.#places.delete(subject);
    this.#ended.set(incident.provider ?? subject, { facts, firstAtMs: place.atMs, place });
  }

  /** Repeats the lines of ended incidents. Returns whether any is yet to be repeated. */
  repeatEnds(): boolean {
    for (const [subject, ended] of this.#ended) {
      if (performance.now() - ended.firstAtMs >= ENDED_TOLD_MS) this.#ended.delete(subject);
      else if (this.#isDue(ended.place, Infinity)) ended.place = this.#writeEnd(ended.facts);
    }
    return this.#ended.size > 0;
  }

  #isDue(place: Place | undefined, repeatedMs: number): boolean {
    if (!place) return true;
    const isOld = performance.now() - place.atMs >= repeatedMs;
    return isOld || isPushedAway(place, this.#otherLines);
  }

  get #otherLines(): number {
    return this.#logger.lines - this.#ownLines;
  }

  #writeEnd(facts: Facts): Place {
    const [what, , fault] = wordsOf(facts);
    return this.#write('info', 'incident ended', { what, fault, ...facts });
  }

  #write(...line: Parameters<Logger['log']>): Place {
    const { lines } = this.#logger;
    this.#logger.log(...line);
    this.#ownLines += this.#logger.lines - lines;
    return { atMs: performance.now(), lines: this.#otherLines };
  }
}
