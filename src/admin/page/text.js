/** Numbers, times and texts from outside, as the page shows them. */

/** Longer texts would slow the page down. */
const MAX_CHARACTERS = 500;
const ISO_TIME = /\d{4}-\d\d-\d\dT[\d:.]{8,12}Z/g;

/** Returns the text with codes for characters that change its direction or break lines. */
export const visible = (text) =>
  String(text).replace(
    /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu,
    (c) => '\\u' + (c.codePointAt(0) ?? 0).toString(16).padStart(4, '0'),
  );

export const clip = (text) =>
  text.length > MAX_CHARACTERS ? text.slice(0, MAX_CHARACTERS) + '…' : String(text);

/** Returns a number as text, in every locale the same. */
export const formatNumber = (value) =>
  value === undefined ? '–' : value.toLocaleString('en', { maximumFractionDigits: 1 });

/** The day without its date in times. */
let today = '';
export const setToday = (time) => (today = localTime(time).slice(0, 10));

/** Returns a time in the browser's time zone, in Swedish form: 2026-11-22 10:15:30. */
const localTime = (time) => new Date(time).toLocaleString('sv');

/** Returns the time of day, behind its date if it is another day. */
export const formatTime = (time) =>
  localTime(time).slice(localTime(time).startsWith(today) ? 11 : 5);

/** Returns a text with its times as local times. */
export const say = (text) => text.replace(ISO_TIME, formatTime);

/** Returns a setting's or a field's value as text. */
export const valueText = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
