// The view of each kind of stage.

import type { Component } from 'svelte';
import type { Stage, TraceInfo } from '../lib/types';
import AddNorm from './AddNorm.svelte';
import Attention from './Attention.svelte';
import Embedding from './Embedding.svelte';
import FeedForward from './FeedForward.svelte';
import OutputHead from './OutputHead.svelte';
import PatchMerging from './PatchMerging.svelte';
import Position from './Position.svelte';
import Tokenization from './Tokenization.svelte';

export { default as AttentionRibbons } from './AttentionRibbons.svelte';
export { default as NextTokens } from './NextTokens.svelte';

export const stageViews: Record<Stage['kind'], Component<{ trace: TraceInfo; stage: Stage }>> = {
  tokens: Tokenization,
  embedding: Embedding,
  merging: PatchMerging,
  position: Position,
  attention: Attention,
  add_norm: AddNorm,
  feed_forward: FeedForward,
  final_norm: AddNorm,
  head: OutputHead,
};
