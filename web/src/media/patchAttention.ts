// The attention of one patch: in a layer by one head or by the mean of all, or through all layers (attention rollout).

import { router } from '../lib/router.svelte';
import type { Source } from '../lib/source';
import { extent, type Tensor } from '../lib/tensor';
import { stackTitle } from '../model/stageNames';
import { t } from '../lib/i18n.svelte';
import { shareWindow } from './windows';
import { gridOf } from './patches';
import type { AttentionRow } from './AttentionThumbnails.svelte';
import type { AttentionInfo, TraceInfo } from '../lib/types';

/** The selected attention: URL parameters `look` (a layer or "roll") and `by` (a head or "mean"). */
export interface AttentionChoice {
  layer: number | 'roll';
  head: number | 'mean';
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
  const name = t('patch_attention.layer_n', { n: layer.layer + 1 });
  return canRoll(trace) ? name : `${stackTitle(layer.stack)}, ${name}`;
}

/** The weights of the patches (S - prefix); outside of the window of a selected patch they are -1. */
export function patchWeights(
  weights: Float32Array,
  prefix: number,
  layer: AttentionInfo | undefined,
  at: number,
): Float32Array {
  const windows = layer?.windows;
  const patches = weights.subarray(prefix);
  return windows ? patches.map((weight, n) => (shareWindow(windows, at - prefix, n) ? weight : -1)) : patches;
}

export function attentionChoice(trace: TraceInfo): AttentionChoice {
  const layers = selfAttentions(trace);
  const last = layers.length - 1;
  const asked = router.param('look');
  const by = router.param('by', 'mean');
  const layer = asked === 'roll' && canRoll(trace) ? 'roll' : router.index('look', layers.length, last);
  const heads = layers[layer === 'roll' ? last : layer]?.heads ?? 1;
  return { layer, head: by === 'mean' ? 'mean' : router.index('by', heads) };
}

/** The attention of all heads of a layer from one query position, (H, S). */
export const attentionRows = (source: Source, trace: TraceInfo, layer: number, at: number, row = 0): Promise<Tensor> =>
  source.tensor(trace.id, `${selfAttentions(trace)[layer].name}.weights`, { slice: `${row},:,${at}` });

/** The attention of a query position to the patches in each layer, as thumbnails show it: the mean and every head. */
export const thumbnailRows = (
  source: Source,
  trace: TraceInfo,
  layers: AttentionInfo[],
  at: number,
): Promise<AttentionRow[]> =>
  Promise.all(
    layers.map(async (layer) => {
      const keys = trace.sequences.find(({ name }) => name === layer.keys)!;
      const patches = keys.kind === 'patches' ? keys : trace.sequences.find(({ kind }) => kind === 'patches')!;
      const grid = gridOf(patches);
      const all = await source.tensor(trace.id, `${layer.name}.weights`, { slice: `0,:,${at}` }); // (H, S)
      const onPatches = (weights: ArrayLike<number>): Float32Array =>
        Float32Array.from(weights).subarray(patches.prefix, patches.prefix + grid[0] * grid[1]);
      return {
        name: t('patch_attention.layer_n', { n: layer.layer + 1 }),
        grid,
        mean: onPatches(all.mean().data),
        heads: Array.from({ length: all.shape[0] }, (_, h) => onPatches(all.of(h).data)),
      };
    }),
  );

/** The attention weights (S) of a query position for the selected layer and head. */
export async function patchAttention(
  source: Source,
  trace: TraceInfo,
  look: AttentionChoice,
  at: number,
  row = 0,
): Promise<Float32Array> {
  if (look.layer === 'roll') return rollout(await means(source, trace, row), at);
  const rows = await attentionRows(source, trace, look.layer, at, row);
  return look.head === 'mean' ? (rows.mean().data as Float32Array) : (rows.of(look.head).data as Float32Array);
}

const EVEN = 3;

/**
 * The weight with the full tint: the largest, but at least three times uniform attention, so that
 * diffuse attention looks faint.
 */
export const overlayScale = (weights: ArrayLike<number>): number =>
  Math.max(extent(weights)[1], EVEN / (weights.length || 1));

const kept = new WeakMap<TraceInfo, Map<number, Promise<Float32Array[]>>>();

/** The weights of each layer averaged over its heads, flat (T * T); requested once, layer by layer. */
function means(source: Source, trace: TraceInfo, row: number): Promise<Float32Array[]> {
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
