// What was written, where it stands in the trace, and which place of the trace wrote it.

import type { AttentionInfo, TokenSequence, TraceToken, TraceInfo } from '../lib/types';

export interface Generation {
  sequence: TokenSequence; // that the model writes into
  start: number; // places before the first written token
  tokens: TraceToken[];
  ids: number[];
}

/** The tokens a model wrote (or was given as written), apart from what it was started with. */
export function generationOf(trace: TraceInfo): Generation | null {
  const outcome = trace.outcome;
  if (outcome.kind !== 'translate' && outcome.kind !== 'generate') return null;
  const sequence = trace.sequences.find((one) => one.name === 'target') ?? trace.sequences[0];
  const start = sequence.tokens.length - outcome.num_tokens;
  const tokens = sequence.tokens.slice(start);
  return { sequence, start, tokens, ids: tokens.map((token) => token.id ?? 0) };
}

/** The attentions that tell where a model looks while it writes: across to the source, or back over its own text. */
export function generationAttentions(trace: TraceInfo): AttentionInfo[] {
  const cross = trace.attentions.filter((one) => one.kind === 'cross');
  return cross.length ? cross : trace.attentions.filter((one) => one.stack === 'decoder');
}

/** The ids that a word of the address holds; null where it is not there. */
export function parseTokenIds(word: string | undefined): number[] | null {
  if (word === undefined) return null;
  return word.split('.').filter(Boolean).map(Number).filter(Number.isInteger);
}
