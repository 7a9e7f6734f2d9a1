// What went wrong, so that it can be said in the reader's language whenever it is shown.

export interface Problem {
  key: string; // of the page's own sentence
  fill?: Record<string, string | number>;
  sentence?: string; // the server's own, or the browser's: English
}

/** Something failed, and the page knows how to say it. */
export class Trouble extends Error {
  constructor(readonly problem: Problem) {
    super(problem.key);
  }
}

/** The server says no, and why. */
export class Refused extends Error {
  constructor(
    message: string,
    readonly status: number,
  ) {
    super(message);
  }
}

/** What an error is to the reader. */
export function told(error: unknown): Problem {
  if (error instanceof Trouble) return error.problem;
  const sentence = error instanceof Error ? error.message : String(error);
  if (!(error instanceof Refused)) return { key: 'problem.page', sentence };
  const [, got, unit, most] = /([\d,]+) (tokens|letters)\b.* at most ([\d,]+)/.exec(sentence) ?? [];
  return most ? { key: `problem.too_many_${unit}`, fill: { got, most } } : { key: 'problem.refused', sentence };
}

/** The same of a view that could not be opened. */
export function unopened(error: unknown): Problem {
  const { key, sentence } = told(error);
  return key === 'problem.page' ? { key: 'problem.view', sentence } : told(error);
}
