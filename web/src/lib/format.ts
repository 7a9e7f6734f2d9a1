// Number formatting: short, with a true minus sign.

/** About three significant digits. */
export function formatNumber(x: number, digits = 3): string {
  if (x === -Infinity) return '−∞';
  if (!Number.isFinite(x)) return String(x);
  if (x === 0) return '0';
  const size = Math.abs(x);
  const text = size >= 1e5 || size < 1e-4 ? x.toExponential(1) : size >= 100 ? x.toFixed(1) : x.toPrecision(digits);
  return text.replace('-', '−');
}

/** Like `formatNumber`, with more digits if the values in view differ by much less than their size. `span`: their range. */
export function formatInRange(x: number, span: number): string {
  const extra = span > 0 && Math.abs(x) > span ? Math.floor(Math.log10(Math.abs(x))) - Math.floor(Math.log10(span)) : 0;
  return extra < 3 ? formatNumber(x) : x.toPrecision(Math.min(17, 3 + extra)).replace('-', '−');
}

/** A fraction as a percentage. */
export function formatPercent(x: number): string {
  const p = 100 * x;
  if (p === 0) return '0%';
  if (p < 0.01) return '<0.01%';
  return `${p >= 10 ? p.toFixed(1) : p >= 1 ? p.toFixed(1) : p.toFixed(2)}%`;
}

export const formatCount = (n: number): string => n.toLocaleString('en-US');
