/** Compares what the client got and the provider saw with the rules of a case. */

import { clip, readAnswer, type Answer } from './answer.ts';
import { type Case, type Rules } from './case.ts';
import type { Exchange } from './client.ts';
import { headerOf, type Message } from './http.ts';
import { minify, type ProviderRequest, type Role } from './provider.ts';

/** All that a case has shown. */
export interface Seen {
  readonly exchanges: readonly Exchange[];
  readonly role: Role;
  readonly clientKey: string;
  readonly token: string;
  readonly providerPort: number;
}

/** An answer, or undefined where the connection ended without any. */
type MaybeAnswer = Answer | undefined;

export interface Verdict {
  readonly isPassed: boolean;
  /** What was seen, in a line. */
  readonly seen: string;
}

/** Decides whether a case has passed. */
export function judge(one: Case, seen: Seen): Verdict {
  const answers = answersOf(one, seen);
  const problems = [
    ...seen.exchanges.flatMap(({ isLate }) => (isLate ? ['no whole answer in time'] : [])),
    ...checkAlternatives(one, seen, answers),
    ...checkSecrets(one, seen),
    ...checkProvider(one, seen),
  ];
  const line = describe(seen, answers);
  return problems.length === 0
    ? { isPassed: true, seen: line }
    : { isPassed: false, seen: `${problems.join('; ')} (${line})` };
}

function answersOf({ client }: Case, { exchanges }: Seen): MaybeAnswer[] {
  return exchanges.flatMap(({ messages }) =>
    messages.length === 0 ? [undefined] : messages.map((message) => readAnswer(message, client)),
  );
}

function checkAlternatives(one: Case, seen: Seen, answers: readonly MaybeAnswer[]): string[] {
  if (one.client_may_get.length === 0) return [];
  const reasons = one.client_may_get.map((rules) => firstBroken(one, rules, { seen, answers }));
  if (reasons.includes(undefined)) return [];
  return [[...new Set(reasons)].join(' / ')];
}

interface Outcome {
  readonly seen: Seen;
  readonly answers: readonly MaybeAnswer[];
}

/** Returns the first broken rule of an alternative, in words. */
function firstBroken(
  one: Case,
  alternative: Case['client_may_get'][number],
  { seen, answers }: Outcome,
): string | undefined {
  const words = one.client.requests ?? ['hello'];
  const rulesOf = (place: number): Rules =>
    isList(alternative) ? (alternative[place] ?? {}) : alternative;
  const { closed, answers: count } = rulesOf(0);
  const there = answers.filter((answer) => answer !== undefined);
  if (closed && !seen.exchanges.every(({ isClosed }) => isClosed))
    return 'the connection stays open';
  const wanted = count ?? (closed ? 0 : undefined);
  if (wanted !== undefined && there.length !== wanted)
    return `${there.length} answers and not ${wanted}`;
  if (wanted === 0) return undefined;
  if (answers.length < (wanted ?? words.length)) return `only ${answers.length} answers`;
  for (const [place, answer] of answers.entries()) {
    const fill = (text: string) => text.replaceAll('${word}', words[place] ?? '');
    const problem = checkAnswer(rulesOf(place), answer, fill);
    if (problem !== undefined) return problem;
  }
  return checkFirstText(rulesOf(0), seen);
}

const isList = (alternative: Case['client_may_get'][number]): alternative is readonly Rules[] =>
  Array.isArray(alternative);

function checkFirstText({ first_text_within_ms: limit }: Rules, { exchanges }: Seen) {
  if (limit === undefined) return undefined;
  const [{ firstTextAtMs, sentAtMs } = { sentAtMs: 0, firstTextAtMs: undefined }] = exchanges;
  if (firstTextAtMs === undefined) return 'no text came';
  const ms = Math.round(firstTextAtMs - sentAtMs);
  return ms <= limit ? undefined : `the first text came after ${ms} ms`;
}

function checkAnswer(
  rules: Rules,
  answer: MaybeAnswer,
  fill: (text: string) => string,
): string | undefined {
  if (answer === undefined) return rules.failure && !rules.status ? undefined : 'no answer';
  const problems = [
    checkOutcome(rules, answer),
    checkContent(rules, answer, fill),
    checkHead(rules, answer),
  ];
  return problems.find((problem) => problem !== undefined);
}

/** Rules over the success or failure of an answer. */
function checkOutcome(rules: Rules, { status, failure, unusable, message }: Answer) {
  if (rules.status !== undefined && !hasStatus(rules.status, status))
    return `status ${status} and not ${JSON.stringify(rules.status).replaceAll('"', '')}`;
  if (rules.failure)
    return failure === undefined ? `no failure${unusable ? ` but ${unusable}` : ''}` : undefined;
  if (rules.incomplete && message.isWhole) return 'whole by HTTP';
  if (rules.whole === undefined) return undefined;
  return failure ?? unusable ?? (message.isWhole ? undefined : 'incomplete');
}

function hasStatus(wanted: NonNullable<Rules['status']>, status: number): boolean {
  if (typeof wanted === 'number') return status === wanted;
  if (typeof wanted === 'string') return wanted === `${Math.floor(status / 100)}xx`;
  return wanted.includes(status);
}

/** Rules over the content of an answer. */
function checkContent(rules: Rules, answer: Answer, fill: (text: string) => string) {
  const { choices, body } = answer;
  const first = choices.get(0) ?? { text: '', reasoning: '', toolArguments: '', finish: null };
  const wanted: [name: string, wanted: unknown, is: unknown][] = [
    ['text', rules.text && fill(rules.text), first.text],
    ['length of the text', rules.text_length, first.text.length],
    ['reasoning', rules.reasoning, first.reasoning],
    ['tool arguments', rules.tool_arguments, first.toolArguments],
    ['finish_reason', rules.finish, first.finish],
  ];
  for (const [place, text] of (rules.texts ?? []).entries())
    wanted.push([`text of choice ${place}`, text, choices.get(place)?.text]);
  for (const [name, want, is] of wanted)
    if (want !== undefined && want !== is)
      return `${name} ${clip(JSON.stringify(is) ?? 'none')} and not ${clip(JSON.stringify(want))}`;
  const missing = (rules.contains ?? []).find((text) => !minify(body).includes(text));
  if (missing !== undefined) return `it lacks ${clip(missing)}`;
  const extra = (rules.lacks ?? []).find((text) => minify(body).includes(text));
  if (extra !== undefined) return `it has ${clip(extra)}`;
  if (rules.no_event_without_choices && answer.hasEventWithoutChoices)
    return 'an event has no choices';
  return undefined;
}

/** Rules over the headers of an answer. */
function checkHead(rules: Rules, { message }: Answer): string | undefined {
  const wrong = checkHeaders(rules.headers, message);
  if (wrong !== undefined) return wrong;
  const extra = (rules.lacks_headers ?? []).find((name) => headerOf(message, name) !== undefined);
  return extra === undefined ? undefined : `it has the header ${extra}`;
}

function checkHeaders(patterns: Rules['headers'], message: Message): string | undefined {
  for (const [name, pattern] of Object.entries(patterns ?? {})) {
    const value = headerOf(message, name);
    if (value === undefined || !new RegExp(`^(?:${pattern})$`).test(value))
      return `${name}: ${value ?? 'missing'}`;
  }
  return undefined;
}

/** Texts that no byte for the client may hold. */
function checkSecrets({ client_never_gets: texts = [] }: Case, seen: Seen): string[] {
  const { role, exchanges, clientKey, providerPort } = seen;
  const keys = new Set(role.requests.map(({ key }) => key));
  // A gateway that sends the client's own key has no key of its own to lose.
  const lost = [...keys].filter((key) => key.length > 3 && key !== clientKey);
  const all = texts.flatMap((text) =>
    text === '${provider-key}' ? lost : [text.replace('${provider-port}', `${providerPort}`)],
  );
  const found = all.filter((text) =>
    exchanges.some(({ bytes }) => bytes.includes(Buffer.from(text))),
  );
  return found.map((text) =>
    keys.has(text) ? "the client gets the gateway's key" : `the client gets ${clip(text)}`,
  );
}

function checkProvider({ provider_sees: rules = {} }: Case, seen: Seen): string[] {
  const { requests, elsewhere } = seen.role;
  const fill = (text: string) =>
    text
      .replaceAll('${client-key}', seen.clientKey)
      .replaceAll('${provider-key}', requests[0]?.key ?? '')
      .replaceAll('${prompt}', `${seen.token} hello`);
  const problems: string[] = [];
  const [least, most] =
    typeof rules.requests === 'number'
      ? [rules.requests, rules.requests]
      : (rules.requests ?? [0, Infinity]);
  if (requests.length < least || requests.length > most)
    problems.push(`the provider got ${requests.length} requests`);
  for (const request of requests) {
    const { message, body } = request;
    const all = `${message.head}\r\n${body}\r\n${minify(body)}`;
    const has = (text: string) => all.includes(fill(text));
    for (const text of rules.lacks ?? []) if (has(text)) problems.push(`the provider gets ${text}`);
    for (const name of rules.lacks_headers ?? [])
      if (headerOf(message, name) !== undefined) problems.push(`the provider gets ${name}`);
    const wrong = checkHeaders(rules.headers, message);
    if (wrong !== undefined) problems.push(`the provider gets ${wrong}`);
    for (const text of rules.body_contains ?? [])
      if (!minify(body).includes(fill(text)))
        problems.push(`the provider does not get ${text} but ${clip(minify(body).slice(-70))}`);
    if (rules.message !== undefined && contentOf(body) !== fill(rules.message))
      problems.push(`the message is ${clip(JSON.stringify(contentOf(body)))}`);
  }
  for (const { head } of elsewhere)
    for (const text of rules.elsewhere_lacks ?? [])
      if (head.includes(fill(text))) problems.push(`another host gets ${text}`);
  problems.push(...checkGone(rules.client_gone_within_ms, seen));
  return [...new Set(problems)];
}

function contentOf(body: string): unknown {
  try {
    const { messages } = JSON.parse(body) as { messages?: { content?: unknown }[] };
    return messages?.at(-1)?.content;
  } catch {
    return undefined;
  }
}

function checkGone(limit: number | undefined, { exchanges, role }: Seen): string[] {
  const leftAtMs = exchanges[0]?.leftAtMs;
  if (limit === undefined) return [];
  if (leftAtMs === undefined) return ['the client could not leave'];
  return role.requests.flatMap(({ goneAtMs }) => {
    if (goneAtMs === undefined) return [`the provider's connection stays open`];
    const ms = Math.round(goneAtMs - leftAtMs);
    return ms <= limit ? [] : [`the provider's connection was closed after ${ms} ms`];
  });
}

/** Describes an outcome in a line without times, so that two runs of a gateway say the same. */
function describe({ exchanges, role }: Seen, answers: readonly MaybeAnswer[]): string {
  const client = answers.map((answer) => (answer === undefined ? 'no answer' : inWords(answer)));
  if (exchanges[0]?.leftAtMs !== undefined) client.push('the client left');
  const { requests } = role;
  const asked = requests.length === 1 ? '1 request' : `${requests.length} requests`;
  const gone = exchanges[0]?.leftAtMs !== undefined && isGone(requests) ? ', closed' : '';
  return `${client.join(', ')}; provider: ${asked}${gone}`;
}

const isGone = (requests: readonly ProviderRequest[]) =>
  requests.length > 0 && requests.every(({ goneAtMs }) => goneAtMs !== undefined);

function inWords({ status, failure, unusable, choices, end, message }: Answer): string {
  if (status < 200 || status > 299) {
    const retryAfter = headerOf(message, 'retry-after');
    return `${status}${retryAfter === undefined ? '' : `, Retry-After: ${retryAfter}`}`;
  }
  const texts = [...choices.values()].map(({ text }) => JSON.stringify(clip(text, 30)));
  return [status, ...texts, failure ?? unusable ?? end ?? 'whole'].join(' ');
}
