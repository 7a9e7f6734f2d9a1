// What stages read from their trace: sequence, attention, stack and selection.

import { router, session } from '../lib';
import { isGenerative } from '../lib/types';
import type { AttentionInfo, ModelInfo, TokenSequence, StackInfo, Stage, TraceInfo } from '../lib/types';
import { tokenLabel } from '../components/tokenText';
import { defaultPosition } from './defaultPosition';

/** What a view of one attention head shows. */
export interface HeadProps {
  trace: TraceInfo;
  stage: Stage;
  attention: AttentionInfo;
  head: number;
  chosen: number; // the query
}

export const sequenceOf = (trace: TraceInfo, name: string): TokenSequence =>
  trace.sequences.find((one) => one.name === name) ?? trace.sequences[0];

/** The token texts, as labels of rows and columns. */
export const tokenLabels = (sequence: TokenSequence): string[] =>
  sequence.tokens.map((token) => tokenLabel(token.piece));

/** Whether each row of an attention predicts the next token of its sequence. */
export const predictsNext = (trace: TraceInfo, { stack, queries }: AttentionInfo): boolean =>
  isGenerative(trace.kind) && stack === 'decoder' && sequenceOf(trace, queries).kind === 'text';

/** The labels of the queries: in a decoder that generates, each is named by the token that it predicts. */
export function queryLabels(trace: TraceInfo, attention: AttentionInfo): string[] {
  const names = tokenLabels(sequenceOf(trace, attention.queries));
  return predictsNext(trace, attention) ? [...names.slice(1), '…'] : names;
}

export const modelOf = (trace: TraceInfo): ModelInfo | null =>
  session.models.find((one) => one.id === trace.model) ?? session.model;

export const stackOf = (trace: TraceInfo, name: string | null): StackInfo | null =>
  modelOf(trace)?.outline.stacks.find((one) => one.name === name) ?? null;

export const attentionOf = (trace: TraceInfo, stage: Stage): AttentionInfo | null => {
  const name = (stage.tensors.q ?? '').replace(/\.q$/, '');
  return trace.attentions.find((one) => one.name === name) ?? null;
};

const within = (n: number, count: number): number => Math.max(0, Math.min(count - 1, Math.round(n)));

/** The selected query position: URL parameter `pos`, clamped to the sequence. */
export const positionIn = (sequence: TokenSequence, otherwise = defaultPosition(sequence)): number =>
  within(router.number('pos', otherwise), sequence.tokens.length);

/** The selected key position: URL parameter `key`. */
export const keyIn = (sequence: TokenSequence, otherwise: number): number =>
  within(router.number('key', otherwise), sequence.tokens.length);

export const headOf = (attention: AttentionInfo, otherwise = 0): number =>
  within(router.number('head', otherwise), attention.heads);

/** The key/value head of a query head. */
export const kvHeadOf = (attention: AttentionInfo, head: number): number =>
  Math.floor((head * attention.kv_heads) / attention.heads);

/** The selected row of the batch: a series has one per channel. */
export const rowOf = (trace: TraceInfo): number => within(router.number('channel', 0), trace.channels?.length ?? 1);

export const MOST = 512; // cells per side; larger matrices are pooled

/** How to pool a tensor of this shape to at most `MOST` cells per side, and how many values a cell then contains. */
export function pooling(rows: number, columns: number): { pool: number | undefined; step: [number, number] } {
  if (rows <= MOST && columns <= MOST * 2) return { pool: undefined, step: [1, 1] };
  return { pool: MOST, step: [Math.ceil(rows / MOST), Math.ceil(columns / MOST)] };
}
