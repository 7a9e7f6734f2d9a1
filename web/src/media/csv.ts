// Columns of numbers from a table as people have it: a header, then a line a step, between commas, semicolons or tabs.

import { PageError } from '../lib/errors';

export interface Table {
  columns: Record<string, number[]>;
  rows: number;
}

const bad = (key: string, fill?: Record<string, string | number>): PageError =>
  new PageError({ key: `csv.${key}`, fill });

/** The cells of one line; a cell in quotes may hold the separator, and two quotes in it stand for one. */
function cells(line: string, between: string): string[] {
  const found: string[] = [];
  let cell = '';
  let quoted = false;
  for (let i = 0; i < line.length; i++) {
    const c = line[i];
    if (quoted && c === '"' && line[i + 1] === '"') cell += line[++i];
    else if (c === '"') quoted = !quoted;
    else if (c === between && !quoted) {
      found.push(cell.trim());
      cell = '';
    } else cell += c;
  }
  return [...found, cell.trim()];
}

const isNumber = (text: string): boolean => text !== '' && Number.isFinite(Number(text));

const commaed = (text: string): boolean => /^[+-]?\d+,\d+$/.test(text);

/** The text of a file's bytes: UTF-8, or UTF-16 that says so or shows it by its zeros. */
export function textOf(bytes: Uint8Array, name: string): string {
  const [one, two] = bytes;
  const wide =
    one === 0xff && two === 0xfe
      ? 'utf-16le'
      : one === 0xfe && two === 0xff
        ? 'utf-16be'
        : two === 0
          ? 'utf-16le'
          : one === 0
            ? 'utf-16be'
            : 'utf-8';
  try {
    return new TextDecoder(wide, { fatal: true }).decode(bytes);
  } catch {
    throw bad('encoding', { name });
  }
}

/**
 * What the text holds. A column whose first cell is no number (a date, a name) is left out; one bad cell is refused, and so is a
 * first line with a number in it that is no column's name.
 */
export function parse(text: string, known: readonly string[] = []): Table {
  const lines = text
    .replace(/^\ufeff/, '')
    .split(/\r\n|\n|\r/)
    .map((line, n) => ({ line, at: n + 1 }))
    .filter(({ line }) => line.trim() !== '');
  if (lines.length < 2) throw bad('empty');
  const between = ['\t', ';', ','].find((one) => lines[0].line.includes(one)) ?? ',';
  const names = cells(lines[0].line, between);
  if (names.some((name) => (isNumber(name) || commaed(name)) && !known.includes(name))) throw bad('header');
  const twice = names.find((name, n) => names.indexOf(name) !== n);
  if (twice !== undefined) throw bad('twice', { name: twice || '""' });
  const rows = lines.slice(1).map(({ line, at }) => {
    const row = cells(line, between);
    if (row.length !== names.length) throw bad('ragged', { line: at, got: row.length, wanted: names.length });
    return { row, at };
  });
  const columns: Record<string, number[]> = Object.create(null) as Record<string, number[]>;
  names.forEach((name, c) => {
    const comma = rows.find(({ row }) => commaed(row[c]));
    if (comma && (known.includes(name) || rows.every(({ row }) => commaed(row[c]) || isNumber(row[c]))))
      throw bad('comma', { line: comma.at, cell: comma.row[c] });
    if (!isNumber(rows[0].row[c]) && !rows.some(({ row }, n) => n < 50 && isNumber(row[c]))) return;
    columns[name] = rows.map(({ row, at }) => {
      if (!isNumber(row[c])) throw bad('number', { line: at, cell: row[c], name });
      return Number(row[c]);
    });
  });
  if (!Object.keys(columns).length) throw bad('none');
  return { columns, rows: rows.length };
}

/**
 * What the model reads of a table: its own columns where it knows their names (else all), the last steps it needs, and how
 * many of them are held out and not shown to the model.
 */
export function cut(
  table: Table,
  series: { context: number; horizon: number; channels: string[] },
  hold: boolean,
): { columns: Record<string, number[]>; holdout: number } {
  const known = series.channels.filter((name) => name in table.columns);
  const missing = series.channels.filter((name) => !(name in table.columns));
  if (missing.length && (known.length || Object.keys(table.columns).length !== series.channels.length))
    throw bad('missing', { names: missing.join(', ') });
  const names = missing.length ? Object.keys(table.columns) : series.channels;
  const holdout = hold && table.rows >= series.context + series.horizon ? series.horizon : 0;
  const needed = series.context + holdout;
  if (table.rows < needed) throw bad('short', { needed: series.context, got: table.rows });
  return { columns: Object.fromEntries(names.map((name) => [name, table.columns[name].slice(-needed)])), holdout };
}
