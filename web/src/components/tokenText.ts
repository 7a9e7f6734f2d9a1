// Makes the text of a token visible: symbols for spaces, line breaks and control characters.

// Letters that no font draws.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

export function visibleText(piece: string): string {
  if (piece === '') return '∅';
  piece = piece.replace(UNSEEN, (letter) => `\\x${letter.charCodeAt(0).toString(16).padStart(2, '0')}`);
  piece = piece.replaceAll('␊', '↵'); // few fonts have the former
  return piece.trim() === '' ? piece.replaceAll(' ', '␣').replaceAll('\n', '↵').replaceAll('\t', '⇥') : piece;
}

/** The same without the blank that most pieces begin with, where it would only push the word aside. */
export const tokenLabel = (piece: string): string => visibleText(piece).trim();
