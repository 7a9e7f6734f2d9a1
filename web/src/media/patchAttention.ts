// The attention of one query to image patches or the patches of a series, in every layer and head.

import type { Source } from '../lib/source';
import { extent, type Tensor } from '../lib/tensor';
import { stackTitle } from '../model/stageNames';
import { t } from '../lib/i18n.svelte';
import { windowOf } from './windows';
import { gridOf, patchSequences } from './patches';
import type { Cells } from './overlay';
import type { AttentionInfo, TokenSequence, TraceInfo } from '../lib/types';

/** The weights of the patches in one layer, by head; outside of the window of the query they are -1. */
export interface AttentionRow {
  name: string; // of the layer
  grid: [number, number];
  mean: Float32Array;
  heads: Float32Array[];
  all?: Tensor; // the weights of all keys, (H, S)
  crop?: Cells; // the window of the query
}

/** The self-attention layers over patches, or over the only kind of tokens. */
export function selfAttentions(trace: TraceInfo): AttentionInfo[] {
  const own = trace.attentions.filter((one) => one.kind === 'self');
  const patches = own.filter((one) => trace.sequences.find(({ name }) => name === one.queries)?.kind === 'patches');
  return patches.length ? patches : own;
}

/** Attention rollout needs layers that all have the same tokens. */
export const canRoll = (trace: TraceInfo): boolean =>
  new Set(selfAttentions(trace).map((one) => one.queries)).size === 1;

/** The name of a layer; with several stacks also that of its stack. */
export function layerName(trace: TraceInfo, layer: AttentionInfo): string {
  if (layer.name.endsWith('final_attn')) return t('segment.final');
  const name = t('patch_attention.layer_n', { n: layer.layer + 1 });
  return canRoll(trace) ? name : `${stackTitle(layer.stack)}, ${name}`;
}

/** The patches among the keys of a layer, or those of the image if it has none. */
const patchesOf = (trace: TraceInfo, layer: AttentionInfo): TokenSequence => {
  const keys = trace.sequences.find(({ name }) => name === layer.keys)!;
  return keys.kind === 'text' ? patchSequences(trace)[0] : keys;
};

/** The attention of a query in one layer. row: of the batch. */
export async function attentionRow(
  source: Source,
  trace: TraceInfo,
  layer: AttentionInfo,
  { query, row = 0 }: { query: number; row?: number },
): Promise<AttentionRow> {
  const keys = patchesOf(trace, layer);
  const all = await source.tensor(trace.id, `${layer.name}.weights`, { slice: `${row},:,${query}` }); // (H, S)
  const grid = gridOf(keys);
  const crop = layer.windows && query >= keys.prefix ? windowOf(layer.windows, query - keys.prefix) : undefined;
  const inside = (n: number, [top, left, rows, columns]: Cells): boolean => {
    const [r, c] = [Math.floor(n / grid[1]) - top, (n % grid[1]) - left];
    return r >= 0 && r < rows && c >= 0 && c < columns;
  };
  const onPatches = (weights: Tensor): Float32Array => {
    const patches = Float32Array.from(weights.data).subarray(keys.prefix, keys.prefix + grid[0] * grid[1]);
    return crop ? patches.map((weight, n) => (inside(n, crop) ? weight : -1)) : patches;
  };
  const heads = Array.from({ length: all.shape[0] }, (_, h) => onPatches(all.of(h)));
  return { name: layerName(trace, layer), grid, all, mean: onPatches(all.mean()), heads, crop };
}

/** The head whose attention is most concentrated: with the largest sum of squared weights. */
export function sharpestHead({ heads }: AttentionRow): number {
  const sums = heads.map((weights) => weights.reduce((sum, weight) => (weight > 0 ? sum + weight * weight : sum), 0));
  return sums.indexOf(Math.max(...sums));
}

const EVEN = 3;

/**
 * The weight with the full light: the largest, but at least three times uniform attention, so that
 * diffuse attention looks faint.
 */
export const overlayScale = (weights: ArrayLike<number>): number =>
  Math.max(extent(weights)[1], EVEN / (Array.from(weights).filter((weight) => weight >= 0).length || 1));

const kept = new WeakMap<TraceInfo, Map<number, Promise<Float32Array[]>>>();

/** The weights of each layer averaged over its heads, flat (T * T); requested once, layer by layer. */
export function means(source: Source, trace: TraceInfo, row: number): Promise<Float32Array[]> {
  const rows = kept.get(trace) ?? new Map<number, Promise<Float32Array[]>>();
  kept.set(trace, rows);
  let made = rows.get(row);
  if (!made) {
    made = (async () => {
      const all: Float32Array[] = [];
      for (const one of selfAttentions(trace))
        all.push(
          (await source.tensor(trace.id, `${one.name}.weights`, { slice: `${row}` })).mean().data as Float32Array,
        );
      return all;
    })();
    made.catch(() => rows.delete(row));
    rows.set(row, made);
  }
  return made;
}

/**
 * Attention rollout (Abnar and Zuidema, 2020): the product of (A + I) / 2 over all layers, where A is the mean of the
 * heads and I accounts for the residual connection. Only one row is needed: it is multiplied from the last layer
 * to the first.
 */
export function rollout(layers: Float32Array[], at: number): Float32Array {
  const size = Math.sqrt(layers[0]?.length ?? 0);
  let row = new Float32Array(size);
  row[at] = 1;
  for (const weights of [...layers].reverse()) {
    const next = new Float32Array(size);
    for (let t = 0; t < size; t++) {
      if (row[t] === 0) continue;
      next[t] += 0.5 * row[t];
      for (let s = 0; s < size; s++) next[s] += 0.5 * row[t] * weights[t * size + s];
    }
    row = next;
  }
  return row;
}
