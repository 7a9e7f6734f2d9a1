// What is switched off in the second film, and the attention of a step of a drawing.

import { pieceAt, toggled } from '../intervene/interventions';
import { t } from '../lib/i18n.svelte';
import { router } from '../lib/router.svelte';
import { session } from '../lib/session.svelte';
import type { DrawingAttention, DrawOutcome, Intervention, TraceInfo } from '../lib/types';
import type { AttentionRow } from './AttentionThumbnails.svelte';

export const outcomeOf = (trace: TraceInfo): DrawOutcome => trace.outcome as DrawOutcome;

export const layersOf = (trace: TraceInfo, kind: DrawingAttention['kind']): DrawingAttention[] =>
  outcomeOf(trace).attentions.filter((one) => one.kind === kind);

/** The tensor of the weights of a layer at a step, (1, H, T, S). */
const weightsOf = (step: number, layer: DrawingAttention): string => `step.${step}.${layer.name}.weights`;

export const layerLabel = (layers: DrawingAttention[], n: number): string =>
  new Set(layers.map((one) => String(one.grid))).size > 1
    ? `${t('patch_attention.layer_n', { n: n + 1 })} (${layers[n].grid.join(' × ')})`
    : t('patch_attention.layer_n', { n: n + 1 });

/** The patch of another grid at the place of a patch of the first layer's. */
function placed(patch: number, from: [number, number], to: [number, number]): number {
  const row = Math.floor(((Math.floor(patch / from[1]) + 0.5) * to[0]) / from[0]);
  return row * to[1] + Math.floor((((patch % from[1]) + 0.5) * to[1]) / from[1]);
}

/** The kinds of attention that a drawing has, in the order of the page. */
export const kindsOf = (trace: TraceInfo): DrawingAttention['kind'][] =>
  (['cross', 'self', 'time'] as const).filter((kind) => layersOf(trace, kind).length);

const framesOf = (trace: TraceInfo): number => outcomeOf(trace).num_frames ?? 1;

/** The patches of a frame, as a slice. */
function patchesOf({ grid }: DrawingAttention, frame: number): string {
  const count = grid[0] * grid[1];
  return `${frame * count}:${(frame + 1) * count}`;
}

/** The weights of a frame: of its patches to a word, of a patch to all, or of a patch from each frame to each. */
function sliceOf(trace: TraceInfo, layer: DrawingAttention, at: number, frame: number): string {
  const count = layer.grid[0] * layer.grid[1];
  if (layer.kind === 'cross') return `${patchesOf(layer, frame)},${at}`;
  if (layer.kind === 'self') return `${frame * count + at},${patchesOf(layer, frame)}`;
  const through = `${at}:${framesOf(trace) * count}:${count}`;
  return `${through},${through}`;
}

/** The attention of a frame's patches to a word, or of one patch, in each layer: the mean and every head. */
export const attentionMaps = (
  trace: TraceInfo,
  step: number,
  layers: DrawingAttention[],
  at: number,
  frame: number,
): Promise<AttentionRow[]> =>
  Promise.all(
    layers.map(async (layer, n) => {
      const place = layer.kind === 'cross' ? at : placed(at, layers[0].grid, layer.grid);
      const slice = `0,:,${sliceOf(trace, layer, place, frame)}`;
      const all = await session.source.tensor(trace.id, weightsOf(step, layer), { slice }); // (H, T), or (H, F, F)
      return {
        name: layerLabel(layers, n),
        grid: layer.kind === 'time' ? [framesOf(trace), framesOf(trace)] : layer.grid,
        mean: all.mean().data as Float32Array,
        heads: Array.from({ length: layer.heads }, (_, h) => all.of(h).data as Float32Array),
      };
    }),
  );

/** The maps (T) of words, from the first to the last, in a frame, or of a word in all frames; a head or the mean. */
export async function wordMaps(
  trace: TraceInfo,
  step: number,
  layer: DrawingAttention,
  head: number | 'mean',
  of: { frame: number } | { word: number },
): Promise<Float32Array[]> {
  const words = trace.sequences[0].tokens.length;
  const part = 'word' in of ? `:,${of.word}:${of.word + 1}` : `${patchesOf(layer, of.frame)},0:${words}`;
  const slice = `0,${head === 'mean' ? ':' : head},${part}`;
  const found = await session.source.tensor(trace.id, weightsOf(step, layer), { slice });
  const { data, shape } = head === 'mean' ? found.mean() : found; // (T, S)
  const size = layer.grid[0] * layer.grid[1];
  if ('word' in of)
    return Array.from({ length: framesOf(trace) }, (_, n) => data.slice(n * size, (n + 1) * size) as Float32Array);
  return Array.from({ length: words }, (_, word) =>
    Float32Array.from({ length: size }, (_, patch) => data[patch * shape[1] + word]),
  );
}

/** The changes in the URL; the server checks them. */
export function changesOf(text: string | undefined): Intervention[] {
  try {
    const found: unknown = JSON.parse(text ?? '[]');
    return Array.isArray(found) ? (found as Intervention[]) : [];
  } catch {
    return [];
  }
}

/** Switch a word or head off, or on again, from a step on. */
export function toggle(change: Intervention, step: number): void {
  const changes = toggled(changesOf(router.params.changes), change);
  const none = changes.length === 0;
  router.go({ params: { changes: none ? null : JSON.stringify(changes), from: none ? null : step } });
}

/** A change in words. */
export function changeLabel(trace: TraceInfo, change: Intervention): string {
  if (change.kind === 'mask_token') return `“${pieceAt(trace, change.sequence, change.position)}”`;
  if (change.kind !== 'ablate_head') return change.kind;
  const found = outcomeOf(trace).attentions.find((one) => one.name === change.attention);
  const layers = layersOf(trace, found?.kind ?? 'self');
  const layer = layers.findIndex((one) => one.name === change.attention);
  return t('draw.head_of', {
    head: change.head + 1,
    layer: layer < 0 ? change.attention : layerLabel(layers, layer),
    kind: t(`draw.${found?.kind ?? 'self'}`),
  });
}
