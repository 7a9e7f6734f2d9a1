import { describe, expect, it } from 'vitest';
import { PageError } from '../lib/errors';
import { decodeText, parseCsv, selectInput } from './csv';

const keyOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof PageError) return error.problem.key;
    throw error;
  }
  return 'no error';
};

describe('parseCsv', () => {
  it.each([',', ';', '\t'])('reads columns of numbers separated by %j', (separator) => {
    const text = [
      ['date', 'a', 'b'],
      ['mon', '1', '2.5'],
      ['tue', '-3', '4e1'],
    ].map((row) => row.join(separator));
    expect(parseCsv(text.join('\r\n'))).toEqual({ columns: { a: [1, -3], b: [2.5, 40] }, rows: 2 });
  });
  it('reads quoted cells, a byte order mark and empty lines', () => {
    expect(parseCsv('\ufeff"a, ""b"""\n\n"1"\n2\n').columns).toEqual({ 'a, "b"': [1, 2] });
  });
  it('accepts a number as a column name if the model knows it', () => {
    expect(parseCsv('1,2\n3,4', ['1', '2']).columns).toEqual({ 1: [3], 2: [4] });
  });
  it.each([
    ['csv.empty', 'a,b'],
    ['csv.header', '1,2\n3,4'],
    ['csv.duplicate', 'a,a\n1,2'],
    ['csv.ragged', 'a,b\n1'],
    ['csv.number', 'a\n1\nx'],
    ['csv.comma', 'a;b\n1,5;2'],
    ['csv.none', 'a\nx'],
  ])('reports %s', (key, text) => {
    expect(keyOf(() => parseCsv(text))).toBe(key);
  });
});

describe('decodeText', () => {
  it('reads UTF-8 and both orders of UTF-16', () => {
    expect(decodeText(new TextEncoder().encode('é'), 'f')).toBe('é');
    expect(decodeText(Uint8Array.of(0xff, 0xfe, 0x61, 0), 'f')).toBe('a');
    expect(decodeText(Uint8Array.of(0, 0x61), 'f')).toBe('a');
    expect(keyOf(() => decodeText(Uint8Array.of(0xe9, 0x31), 'f'))).toBe('csv.encoding');
  });
});

describe('selectInput', () => {
  const table = { columns: { a: [1, 2, 3, 4], b: [5, 6, 7, 8] }, rows: 4 };
  const series = { context: 2, horizon: 1, channels: ['b'] };
  it('takes the last steps of the known columns and holds out the horizon', () => {
    expect(selectInput(table, series, false)).toEqual({ columns: { b: [7, 8] }, holdout: 0 });
    expect(selectInput(table, series, true)).toEqual({ columns: { b: [6, 7, 8] }, holdout: 1 });
  });
  it('takes all columns if none is known by name and the count fits', () => {
    expect(Object.keys(selectInput(table, { ...series, channels: ['x', 'y'] }, false).columns)).toEqual(['a', 'b']);
  });
  it('reports missing columns and short series', () => {
    expect(keyOf(() => selectInput(table, { ...series, channels: ['b', 'c'] }, false))).toBe('csv.missing');
    expect(keyOf(() => selectInput(table, { ...series, context: 9 }, false))).toBe('csv.short');
  });
});
