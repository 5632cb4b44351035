/** Formats the log as text, for a terminal. */

import type { TryFacts } from './history.ts';
import type { FlatFacts, LogEntry, LogFacts } from '../lib/log.ts';
import type { RequestFacts } from './facts.ts';
import { cutText, escapeControlCharacters } from '../lib/secrets.ts';

const MAX_MESSAGE_CHARACTERS = 2000;
const MAX_TEXT_VALUE_CHARACTERS = 500;
const WORD = /^[^\s"=\\]+$/;
/** A value in an array that needs no quotes. */
const ARRAY_WORD = /^[^\s"=\\,[\]]+$/;

/**
 * Returns a log entry as text, with its line end. A failed request takes further lines, for each
 * attempt and for its ids.
 */
export function formatText({ time, level, message, ...facts }: LogEntry): string {
  const clock = time.slice(11, 23);
  if (message === 'request') return formatRequest(clock, facts as unknown as RequestFacts);
  const text = escapeControlCharacters(message, MAX_MESSAGE_CHARACTERS);
  return `${clock} ${level.toUpperCase().padEnd(5)} ${[text, ...pairsOf(facts)].join(' ')}\n`;
}

function formatRequest(
  clock: string,
  facts: RequestFacts & { readonly headers?: FlatFacts },
): string {
  const { client, cost, headers, model, outcome, status, tries = [], waited_ms } = facts;
  const sentTo = `${facts.provider}/${facts.upstream_model}`;
  const target = facts.upstream_model === undefined || sentTo === model ? '' : ` → ${sentTo}`;
  const subject = model === undefined ? `${facts.method} ${facts.path}` : `${model}${target}`;
  const times = [facts.first_byte_ms, facts.duration_ms].filter((ms) => ms !== undefined);
  const { prompt_tokens: sent, completion_tokens: received } = facts;
  const isCounted = sent !== undefined || received !== undefined;
  const tokens = isCounted ? `  ${sent ?? '?'}+${received ?? '?'} tokens` : '';
  const took = [...new Set(times.map(formatMs))].join(', ');
  const shown = escapeControlCharacters(subject, MAX_TEXT_VALUE_CHARACTERS);
  const asked = client === undefined ? shown : `${client}  ${shown}`;
  const head = `${clock} ${outcome.padEnd(14)} ${status ?? '---'}`;
  const more = pairsOf({ waited_ms, cost, ...headers }).map((pair) => `  ${pair}`);
  const line = `${head}  ${asked}  ${took}${tokens}${more.join('')}\n`;
  if (outcome === 'ok') return line;
  const { cause, limit, reason, remote, request_id } = facts;
  const details = pairsOf({ reason, limit, cause, remote, request_id }).join(' ');
  return `${line}${tries.map(formatTry).join('')}  ${details}\n`;
}

function formatTry({ provider, model, outcome, duration_ms, ...rest }: TryFacts): string {
  const { key, status, cause } = rest;
  const took = duration_ms === undefined ? [] : [formatMs(duration_ms)];
  const parts = [formatValue(`${provider}/${model}`), outcome, ...took];
  return `  ${[...parts, ...pairsOf({ key, status, cause })].join(' ')}\n`;
}

function formatMs(ms: number): string {
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function pairsOf(facts: LogFacts, word = WORD): string[] {
  return Object.entries(facts)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `${name}=${formatValue(value, word)}`);
}

/**
 * Formats a value. A text that does not match `word` is quoted as JSON, because a space and `=` in
 * it could forge a field.
 */
function formatValue(value: unknown, word = WORD): string {
  if (Array.isArray(value)) {
    const entries = value.map((entry: string | FlatFacts) =>
      typeof entry === 'string'
        ? formatValue(entry, ARRAY_WORD)
        : pairsOf(entry, ARRAY_WORD).join(' '),
    );
    return `[${entries.join(', ')}]`;
  }
  const text = cutText(String(value), MAX_TEXT_VALUE_CHARACTERS);
  return escapeControlCharacters(word.test(text) ? text : JSON.stringify(text), Infinity);
}
