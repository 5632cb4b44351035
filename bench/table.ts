/** Formats the numbers from several rounds as Markdown. */

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  return ((sorted[Math.floor(middle)] ?? NaN) + (sorted[Math.ceil(middle)] ?? NaN)) / 2;
}

export function figure(value: number): string {
  const size = Math.abs(value);
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
  const options = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return value.toLocaleString('en-US', options);
}

/**
 * Returns the median, or `middle`, with the least and the greatest value. NaN means "not measured".
 */
export function spread(values: readonly number[], middle = NaN): string {
  const known = values.filter((value) => !Number.isNaN(value));
  if (known.length === 0) return '–';
  const shown = figure(Number.isNaN(middle) ? median(known) : middle);
  if (known.length === 1) return shown;
  return `${shown} (${figure(Math.min(...known))}–${figure(Math.max(...known))})`;
}

export function markdown(rows: readonly (readonly string[])[]): string {
  const [head = [], ...others] = rows;
  const line = head.map((_, index) => (index === 0 ? '---' : '--:'));
  return [head, line, ...others].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}
