// Shows a long sequence page by page: the page with the selected token.

const PAGE = 100;
const AROUND = 10; // tokens of the previous and next page

/** The first token of the page, and the last + 1. */
export function pageOf(count: number, chosen: number): [number, number] {
  if (count <= 2 * PAGE) return [0, count];
  const first = Math.floor(chosen / PAGE) * PAGE;
  return [Math.max(0, first - AROUND), Math.min(count, first + PAGE + AROUND)];
}
