// Columns of numbers from a table as people have it: a header, then a line a step, between commas, semicolons or tabs.

import { t } from '../lib/words.svelte';

export interface Table {
  columns: Record<string, number[]>;
  rows: number;
}

/** A sentence for the person who gave it. */
export class BadTable extends Error {}

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

/** What the text holds. A column whose first cell is no number (a date, a name) is left out; one bad cell is refused. */
export function parse(text: string): Table {
  const lines = text.replace(/^\ufeff/, '').split(/\r\n|\n|\r/).map((line, n) => ({ line, at: n + 1 })).filter(({ line }) => line.trim() !== '');
  if (lines.length < 2) throw new BadTable(t('csv.empty'));
  const between = ['\t', ';', ','].find((one) => lines[0].line.includes(one)) ?? ',';
  const names = cells(lines[0].line, between);
  if (names.every(isNumber)) throw new BadTable(t('csv.header'));
  const twice = names.find((name, n) => names.indexOf(name) !== n);
  if (twice !== undefined) throw new BadTable(t('csv.twice', { name: twice || '""' }));
  const rows = lines.slice(1).map(({ line, at }) => {
    const row = cells(line, between);
    if (row.length !== names.length) throw new BadTable(t('csv.ragged', { line: at, got: row.length, wanted: names.length }));
    return { row, at };
  });
  const columns: Record<string, number[]> = Object.create(null) as Record<string, number[]>;
  names.forEach((name, c) => {
    if (!isNumber(rows[0].row[c]) && !rows.some(({ row }, n) => n < 50 && isNumber(row[c]))) return;
    columns[name] = rows.map(({ row, at }) => {
      if (!isNumber(row[c])) throw new BadTable(t('csv.number', { line: at, cell: row[c], name }));
      return Number(row[c]);
    });
  });
  if (!Object.keys(columns).length) throw new BadTable(t('csv.none'));
  return { columns, rows: rows.length };
}

/**
 * What the model reads of a table: its own columns where it knows their names (else all), the last steps it needs, and how
 * many of them are truth that it must not see.
 */
export function cut(table: Table, series: { context: number; horizon: number; channels: string[] }, hold: boolean): { columns: Record<string, number[]>; truth: number } {
  const known = series.channels.filter((name) => name in table.columns);
  const missing = series.channels.filter((name) => !(name in table.columns));
  if (missing.length && (known.length || Object.keys(table.columns).length !== series.channels.length))
    throw new BadTable(t('csv.missing', { names: missing.join(', ') }));
  const names = missing.length ? Object.keys(table.columns) : series.channels;
  const truth = hold && table.rows >= series.context + series.horizon ? series.horizon : 0;
  const needed = series.context + truth;
  if (table.rows < needed) throw new BadTable(t('csv.short', { needed: series.context, got: table.rows }));
  return { columns: Object.fromEntries(names.map((name) => [name, table.columns[name].slice(-needed)])), truth };
}
