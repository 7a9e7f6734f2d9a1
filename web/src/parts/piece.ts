// A token as it can be seen: blanks and line ends have marks where nothing else is to be seen.

export function visible(piece: string): string {
  if (piece === '') return '∅';
  piece = piece.replaceAll('␊', '↵'); // few fonts have the former
  return piece.trim() === '' ? piece.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥') : piece;
}

/** The same without the blank that most pieces begin with, where it would only push the word aside. */
export const label = (piece: string): string => visible(piece).trim();
