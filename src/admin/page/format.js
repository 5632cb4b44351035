/** Numbers, times and texts from outside, as the page shows them. */

/** Characters that change the direction of text or break lines are shown by their codes. */
export function visible(text) {
  return String(text).replace(
    /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}]/gu,
    (c) => '\\u' + (c.codePointAt(0) ?? 0).toString(16).padStart(4, '0'),
  );
}

const MAX_CELL_CHARACTERS = 240;
export function clip(text) {
  const shown = String(text);
  return shown.length > MAX_CELL_CHARACTERS ? shown.slice(0, MAX_CELL_CHARACTERS) + '…' : shown;
}

/** The same in every locale: 12 345, 123 k, 4.56 M; nothing is a dash. */
export function formatNumber(value) {
  if (value === undefined || value === null) return '–';
  const size = Math.abs(value);
  if (size >= 1e9) return (value / 1e9).toFixed(2) + '\u202fG';
  if (size >= 1e6) return (value / 1e6).toFixed(2) + '\u202fM';
  if (size >= 1e5) return Math.floor(value / 1e3) + '\u202fk';
  if (size < 100 && !Number.isInteger(value)) return value.toFixed(1);
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

/** In the browser's time zone: 2026-11-22 10:15:30, as Swedes write it. */
const localTime = (time) => new Date(time).toLocaleString('sv');

/** Returns the time of day. */
export const formatTime = (time) => localTime(time).slice(11);

/** Returns the time of day, with the date unless it is that of `now`. */
export function formatDay(time, now) {
  const isToday = localTime(time).slice(0, 10) === localTime(now).slice(0, 10);
  return localTime(time).slice(isToday ? 11 : 5);
}

export function formatDuration(ms) {
  const seconds = Math.max(0, Math.ceil(ms / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  if (seconds < 60) return seconds + ' s';
  if (minutes < 60) return minutes + ' min ' + (seconds % 60) + ' s';
  if (hours < 48) return hours + ' h ' + (minutes % 60) + ' min';
  return Math.floor(hours / 24) + ' d ' + (hours % 24) + ' h';
}

/** A setting's or a fact's value as text. */
export const valueText = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
