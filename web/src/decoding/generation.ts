// The generated tokens of a trace.

import { hasSource } from '../lib/types';
import type { AttentionInfo, TokenSequence, TraceToken, TraceInfo } from '../lib/types';

export interface Generation {
  sequence: TokenSequence; // that contains the generated tokens
  start: number; // position of the first generated token
  tokens: TraceToken[];
  ids: number[];
}

/** The generated tokens, without the prompt; null for a model that does not generate. */
export function generationOf(trace: TraceInfo): Generation | null {
  const outcome = trace.outcome;
  if (!('num_tokens' in outcome)) return null;
  const sequence = trace.sequences.find((sequence) => sequence.name === 'target') ?? trace.sequences[0];
  const start = sequence.tokens.length - outcome.num_tokens;
  const tokens = sequence.tokens.slice(start);
  return { sequence, start, tokens, ids: tokens.map((token) => token.id ?? 0) };
}

/** The attention layers to show while generating: cross-attention, or else self-attention of the decoder. */
export function generationAttentions(trace: TraceInfo): AttentionInfo[] {
  const cross = trace.attentions.filter((attention) => attention.kind === 'cross');
  return cross.length ? cross : trace.attentions.filter((attention) => attention.stack === 'decoder');
}

/** Token ids from a URL parameter, separated by dots; null if it is absent. */
export function parseTokenIds(param: string | undefined): number[] | null {
  if (param === undefined) return null;
  return param.split('.').filter(Boolean).map(Number).filter(Number.isInteger);
}

/** The output of an encoder-decoder as a fixed target, so that two traces can be compared position by position. */
export function fixedTarget(trace: TraceInfo): number[] | null {
  return hasSource(trace.kind) ? generationOf(trace)!.ids : null;
}
