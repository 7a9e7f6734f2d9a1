// The difference of two texts, word by word.

export interface Part {
  text: string;
  changed: boolean; // not in the other text
}

/** Both texts split into words; words outside the longest common subsequence are marked as changed. */
export function wordDiff(before: string, after: string): { before: Part[]; after: Part[]; same: boolean } {
  const split = (text: string): string[] => text.match(/\s*\S+|\s+$/g)?.slice(0, 400) ?? [];
  const [a, b] = [split(before), split(after)];
  const trim = (word: string): string => word.trim();
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width); // of the longest common subsequence of a[i:] and b[j:]
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] =
        trim(a[i]) === trim(b[j])
          ? common[(i + 1) * width + j + 1] + 1
          : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  const parts = { before: [] as Part[], after: [] as Part[], same: before === after };
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && trim(a[i]) === trim(b[j])) {
      parts.before.push({ text: a[i++], changed: false });
      parts.after.push({ text: b[j++], changed: false });
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) {
      parts.before.push({ text: a[i++], changed: true });
    } else parts.after.push({ text: b[j++], changed: true });
  }
  return parts;
}
