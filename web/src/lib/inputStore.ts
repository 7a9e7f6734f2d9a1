// Inputs that are too large for the URL, by their name there; they last as long as the visit.

import type { TraceInput } from './types';

/** images: of a model that compares several images with several texts. */
export type StoredInput = TraceInput & { images?: string[] };

export const storedInputs = new Map<string, StoredInput>();
