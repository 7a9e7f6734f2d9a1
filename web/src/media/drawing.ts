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

/** The attention of every patch to a word, or of one patch to all, in each layer: the mean and every head. */
export const attentionMaps = (
  trace: TraceInfo,
  step: number,
  layers: DrawingAttention[],
  at: number,
): Promise<AttentionRow[]> =>
  Promise.all(
    layers.map(async (layer, n) => {
      const slice = layer.kind === 'cross' ? `0,:,:,${at}` : `0,:,${placed(at, layers[0].grid, layer.grid)}`;
      const all = await session.source.tensor(trace.id, weightsOf(step, layer), { slice }); // (H, T)
      return {
        name: layerLabel(layers, n),
        grid: layer.grid,
        mean: all.mean().data as Float32Array,
        heads: Array.from({ length: layer.heads }, (_, h) => all.of(h).data as Float32Array),
      };
    }),
  );

/** The maps (T) of all words in one layer, of a head or the mean of all. */
export async function wordMaps(
  trace: TraceInfo,
  step: number,
  layer: DrawingAttention,
  head: number | 'mean',
): Promise<Float32Array[]> {
  const words = trace.sequences[0].tokens.length;
  const slice = `0,${head === 'mean' ? ':' : head},:,0:${words}`;
  const found = await session.source.tensor(trace.id, weightsOf(step, layer), { slice });
  const part = head === 'mean' ? found.mean() : found; // (T, S)
  return Array.from({ length: words }, (_, word) =>
    Float32Array.from({ length: part.shape[0] }, (_, patch) => part.at(patch, word)),
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
    kind: t(found?.kind === 'cross' ? 'draw.cross' : 'draw.self'),
  });
}
