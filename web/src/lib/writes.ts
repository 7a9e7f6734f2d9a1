// Which models write text, token by token: only they have a decoding to show.

import type { Kind } from './types';

export const isGenerative = (kind: Kind): boolean => kind === 'translate' || kind === 'generate';
