// Where two texts differ, word by word.

export interface Part {
  text: string;
  apart: boolean; // not in the other text
}

/** Both texts cut into words, those of no longest common sequence marked. */
export function wordDiff(before: string, after: string): { before: Part[]; after: Part[]; same: boolean } {
  const cut = (text: string): string[] => text.match(/\s*\S+|\s+$/g)?.slice(0, 400) ?? [];
  const [a, b] = [cut(before), cut(after)];
  const bare = (word: string): string => word.trim();
  const width = b.length + 1;
  const length = new Uint16Array((a.length + 1) * width); // of the longest common sequence from (i, j) on
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      length[i * width + j] =
        bare(a[i]) === bare(b[j])
          ? length[(i + 1) * width + j + 1] + 1
          : Math.max(length[(i + 1) * width + j], length[i * width + j + 1]);
    }
  }
  const found = { before: [] as Part[], after: [] as Part[], same: before === after };
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && bare(a[i]) === bare(b[j])) {
      found.before.push({ text: a[i++], apart: false });
      found.after.push({ text: b[j++], apart: false });
    } else if (j >= b.length || (i < a.length && length[(i + 1) * width + j] >= length[i * width + j + 1])) {
      found.before.push({ text: a[i++], apart: true });
    } else found.after.push({ text: b[j++], apart: true });
  }
  return found;
}
