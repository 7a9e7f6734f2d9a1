// The next-token predictions of a prompt without generated tokens; requested once per trace.

import { session } from '../lib/session.svelte';
import type { NextTokenInfo, TraceInfo } from '../lib/types';

const asked = new WeakMap<TraceInfo, Promise<NextTokenInfo>>();

/** Null where the model has already said something, or does not write. */
export function nextTokens(trace: TraceInfo | null): Promise<NextTokenInfo> | null {
  if (trace?.outcome.kind !== 'generate' || trace.outcome.text !== '') return null;
  let coming = asked.get(trace);
  if (!coming) {
    const last = (trace.sequences.at(-1)?.tokens.length ?? 1) - 1;
    coming = session.source.next(trace.id, last, 3);
    coming.catch(() => asked.delete(trace));
    asked.set(trace, coming);
  }
  return coming;
}
