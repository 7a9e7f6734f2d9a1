// The stations of the data's way, each with what is to be seen there.

import type { Component } from 'svelte';
import type { Station, TraceInfo } from '../lib/types';
import AddNorm from './AddNorm.svelte';
import Attention from './Attention.svelte';
import Embedding from './Embedding.svelte';
import FeedForward from './FeedForward.svelte';
import Head from './Head.svelte';
import Position from './Position.svelte';
import TokensStation from './TokensStation.svelte';

export { default as Alignment } from './Alignment.svelte';
export { default as NextWords } from './NextWords.svelte';

export const stationViews: Record<Station['kind'], Component<{ trace: TraceInfo; station: Station }>> = {
  tokens: TokensStation,
  embedding: Embedding,
  position: Position,
  attention: Attention,
  add_norm: AddNorm,
  feed_forward: FeedForward,
  final_norm: AddNorm,
  head: Head,
};
