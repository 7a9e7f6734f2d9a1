// Errors as data: the server's by code and fields, the page's own by key. They become text when they are shown, in the
// reader's language.

import type { ErrorInfo } from './types';
import { has, type Key } from './i18n.svelte';

export interface Problem {
  key: Key; // of the page's own text
  fill?: Record<string, string | number>;
  detail?: string; // English, from the server or the browser
}

/** An error with a text of the page's own. */
export class PageError extends Error {
  constructor(readonly problem: Problem) {
    super(problem.key);
  }
}

/** An error response of the server. */
export class ServerError extends Error {
  constructor(
    readonly info: ErrorInfo,
    readonly status: number,
  ) {
    super(info.message);
  }
}

const text = (value: unknown): string =>
  typeof value === 'number' ? value.toLocaleString('en') : Array.isArray(value) ? value.join(', ') : String(value);

/** What to show for an error. Codes without a text of the page's own are shown with the server's message. */
export function describe(error: unknown): Problem {
  if (error instanceof PageError) return error.problem;
  const detail = error instanceof Error ? error.message : String(error);
  if (!(error instanceof ServerError)) return { key: 'problem.page', detail };
  const { code, fields = {} } = error.info;
  const key = [`error.${code}.${fields.unit}`, `error.${code}`].find(has);
  if (!key) return { key: 'problem.refused', detail };
  return { key, fill: Object.fromEntries(Object.entries(fields).map(([name, value]) => [name, text(value)])) };
}

/** The same for a view that could not be opened. */
export function describeView(error: unknown): Problem {
  const problem = describe(error);
  return problem.key === 'problem.page' ? { ...problem, key: 'problem.view' } : problem;
}
