// What of a trace can be explained: generated tokens, labels, filled masks, objects.

import { generationOf } from '../decoding/generation';
import type { TraceInfo } from '../lib/types';

export interface OutputUnit {
  row: number; // in the tensors of occlusion
  position: number | null; // where the model predicts it; null: for the whole input
  id: number | null; // in the vocabulary or among the labels; null: the most likely
  name: string;
}

/** The outputs in the order of the rows of `occlusion`; empty if there is nothing to explain. */
export function outputsOf(trace: TraceInfo, labels: readonly string[] | null): OutputUnit[] {
  const { outcome } = trace;
  if (outcome.kind === 'generate') {
    const [{ tokens }] = trace.sequences;
    return tokens.map((_, n) => ({
      row: n,
      position: n,
      id: tokens[n + 1]?.id ?? null,
      name: tokens[n + 1]?.piece ?? '?',
    }));
  }
  const generated = generationOf(trace);
  if (generated) {
    const { sequence } = generated;
    const start = Math.max(1, sequence.prefix);
    return sequence.tokens
      .slice(start)
      .map(({ id, piece }, n) => ({ row: n, position: start + n - 1, id, name: piece }));
  }
  if ('labels' in outcome && labels)
    return outcome.labels.map(({ label }) => {
      const row = labels.indexOf(label);
      return { row, position: null, id: row, name: label };
    });
  if (outcome.kind === 'fill')
    return outcome.masks.map(({ position, predictions: [best] }, n) => ({
      row: n,
      position,
      id: best.id,
      name: best.text,
    }));
  if (outcome.kind === 'detect' && labels)
    return outcome.objects.map(({ query, label }, n) => ({
      row: n,
      position: query,
      id: labels.indexOf(label),
      name: label,
    }));
  return [];
}
