// What an encoder-decoder had written, held fast, so that two traces can be compared place by place.

import { generationOf } from '../decoding/generation';
import type { TraceInfo } from '../lib/types';

/** The target to ask with: the words that stand in this trace; null where the model writes none of its own. */
export function fixedTarget(trace: TraceInfo): number[] | null {
  return trace.kind === 'translate' ? generationOf(trace)!.ids : null;
}
