// A token as it can be seen: blanks and line ends have marks where nothing else is to be seen.

export function visible(piece: string): string {
  if (piece === '') return '∅';
  return piece.trim() === '' ? piece.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥') : piece;
}
