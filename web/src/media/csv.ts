// Reads columns of numbers from CSV text: a header, then one line per step; commas, semicolons or tabs.

import { PageError } from '../lib/errors';
import type { Key } from '../lib/i18n.svelte';

export interface Table {
  columns: Record<string, number[]>;
  rows: number;
}

const csvError = (key: Key, fill?: Record<string, string | number>): PageError => new PageError({ key, fill });

/** The cells of one line. Quoted cells may contain the separator, and doubled quotes. */
function splitLine(line: string, separator: string): string[] {
  const cells: string[] = [];
  let cell = '';
  let quoted = false;
  for (let i = 0; i < line.length; i++) {
    const c = line[i];
    if (quoted && c === '"' && line[i + 1] === '"') cell += line[++i];
    else if (c === '"') quoted = !quoted;
    else if (c === separator && !quoted) {
      cells.push(cell.trim());
      cell = '';
    } else cell += c;
  }
  return [...cells, cell.trim()];
}

const isNumber = (text: string): boolean => text !== '' && Number.isFinite(Number(text));

const hasDecimalComma = (text: string): boolean => /^[+-]?\d+,\d+$/.test(text);

/** Decode a file: UTF-8, or UTF-16 with a byte order mark or zero bytes. */
export function decodeText(bytes: Uint8Array, name: string): string {
  const [first, second] = bytes;
  const encoding =
    first === 0xff && second === 0xfe
      ? 'utf-16le'
      : first === 0xfe && second === 0xff
        ? 'utf-16be'
        : second === 0
          ? 'utf-16le'
          : first === 0
            ? 'utf-16be'
            : 'utf-8';
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    throw csvError('csv.encoding', { name });
  }
}

/**
 * Parse CSV text. Columns without numbers (dates, names) are left out. A non-numeric cell in a column of numbers is an error,
 * and so is a number in the header that is not the name of a `known` column.
 */
export function parseCsv(text: string, known: readonly string[] = []): Table {
  const lines = text
    .replace(/^\ufeff/, '')
    .split(/\r\n|\n|\r/)
    .map((line, n) => ({ line, at: n + 1 }))
    .filter(({ line }) => line.trim() !== '');
  if (lines.length < 2) throw csvError('csv.empty');
  const separator = ['\t', ';', ','].find((c) => lines[0].line.includes(c)) ?? ',';
  const names = splitLine(lines[0].line, separator);
  if (names.some((name) => (isNumber(name) || hasDecimalComma(name)) && !known.includes(name)))
    throw csvError('csv.header');
  const duplicate = names.find((name, n) => names.indexOf(name) !== n);
  if (duplicate !== undefined) throw csvError('csv.duplicate', { name: duplicate || '""' });
  const rows = lines.slice(1).map(({ line, at }) => {
    const row = splitLine(line, separator);
    if (row.length !== names.length) throw csvError('csv.ragged', { line: at, got: row.length, wanted: names.length });
    return { row, at };
  });
  const columns: Record<string, number[]> = Object.create(null) as Record<string, number[]>;
  names.forEach((name, c) => {
    const comma = rows.find(({ row }) => hasDecimalComma(row[c]));
    if (comma && (known.includes(name) || rows.every(({ row }) => hasDecimalComma(row[c]) || isNumber(row[c]))))
      throw csvError('csv.comma', { line: comma.at, cell: comma.row[c] });
    if (!isNumber(rows[0].row[c]) && !rows.some(({ row }, n) => n < 50 && isNumber(row[c]))) return;
    columns[name] = rows.map(({ row, at }) => {
      if (!isNumber(row[c])) throw csvError('csv.number', { line: at, cell: row[c], name });
      return Number(row[c]);
    });
  });
  if (!Object.keys(columns).length) throw csvError('csv.none');
  return { columns, rows: rows.length };
}

/**
 * Select what the model needs: its columns (all of them if it has no names for them), the last steps, and, with `hold`, how many of
 * the last steps are held out for comparison.
 */
export function selectInput(
  table: Table,
  series: { context: number; horizon: number; channels: string[] },
  hold: boolean,
): { columns: Record<string, number[]>; holdout: number } {
  const known = series.channels.filter((name) => name in table.columns);
  const missing = series.channels.filter((name) => !(name in table.columns));
  if (missing.length && (known.length || Object.keys(table.columns).length !== series.channels.length))
    throw csvError('csv.missing', { names: missing.join(', ') });
  const names = missing.length ? Object.keys(table.columns) : series.channels;
  const holdout = hold && table.rows >= series.context + series.horizon ? series.horizon : 0;
  const needed = series.context + holdout;
  if (table.rows < needed) throw csvError('csv.short', { needed: series.context, got: table.rows });
  return { columns: Object.fromEntries(names.map((name) => [name, table.columns[name].slice(-needed)])), holdout };
}
