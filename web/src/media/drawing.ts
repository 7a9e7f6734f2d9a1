// What is switched off in the second film, and the attention of a step of a drawing.

import { pieceAt, toggled } from '../intervene/interventions';
import { t } from '../lib/i18n.svelte';
import { router } from '../lib/router.svelte';
import { session } from '../lib/session.svelte';
import type { Numbers } from '../lib/tensor';
import type { DrawingAttention, DrawOutcome, Intervention, TraceInfo } from '../lib/types';
import type { AttentionRow } from './patchAttention';

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

/** words: the weights of the words, of the mean and every head; null for attention to patches or words alone. */
export interface DrawingRow extends AttentionRow {
  words: Numbers[] | null;
}

const framesOf = (trace: TraceInfo): number => outcomeOf(trace).num_frames ?? 1;

/** A slice of `count` positions. */
const slice = (first: number, count: number): string => `${first}:${first + count}`;

/** How many patches of a frame have attended at a step: all, or of codes those that are chosen, and the next. */
const attended = (trace: TraceInfo, { grid }: DrawingAttention, step: number): number =>
  outcomeOf(trace).codes ? step + 1 : grid[0] * grid[1];

/** The weights of a frame: of its patches to a word, of a patch to all, or of a patch from each frame to each. */
function sliceOf(trace: TraceInfo, step: number, layer: DrawingAttention, at: number, frame: number): string {
  const { grid, first_query, first_key } = layer;
  const count = grid[0] * grid[1];
  const start = first_query + frame * count;
  if (layer.kind === 'cross') return `${slice(start, attended(trace, layer, step))},${at}`;
  if (layer.kind === 'self') return `${start + at},${first_key ? ':' : slice(frame * count, count)}`;
  const through = `${at}:${framesOf(trace) * count}:${count}`;
  return `${through},${through}`;
}

/** Weights of all patches; those that are still to come have -1. */
function padded(weights: Numbers, { grid }: DrawingAttention): Float32Array {
  const all = new Float32Array(grid[0] * grid[1]).fill(-1);
  all.set(weights);
  return all;
}

/** The attention of a frame's patches to a word, or of one patch, in each layer: the mean and every head. */
export const attentionMaps = (
  trace: TraceInfo,
  step: number,
  layers: DrawingAttention[],
  at: number,
  frame: number,
): Promise<DrawingRow[]> =>
  Promise.all(
    layers.map(async (layer, n) => {
      const place = layer.kind === 'cross' ? at : placed(at, layers[0].grid, layer.grid);
      const part = `0,:,${sliceOf(trace, step, layer, place, frame)}`;
      const all = await session.source.tensor(trace.id, weightsOf(step, layer), { slice: part }); // (H, T), or (H, F, F)
      const each = [all.mean(), ...Array.from({ length: layer.heads }, (_, h) => all.of(h))].map(({ data }) => data);
      const { first_key } = layer;
      const [mean, ...heads] = each.map((data) =>
        layer.kind === 'time'
          ? (data as Float32Array)
          : padded(first_key ? data.subarray(first_key, first_key + place) : data, layer),
      );
      return {
        name: layerLabel(layers, n),
        grid: layer.kind === 'time' ? [framesOf(trace), framesOf(trace)] : layer.grid,
        mean,
        heads,
        words: first_key ? each.map((data) => data.subarray(0, first_key)) : null,
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
  const count = attended(trace, layer, step);
  const part =
    'word' in of
      ? `:,${slice(of.word, 1)}`
      : `${slice(layer.first_query + of.frame * count, count)},${slice(0, words)}`;
  const found = await session.source.tensor(trace.id, weightsOf(step, layer), {
    slice: `0,${head === 'mean' ? ':' : head},${part}`,
  });
  const { data, shape } = head === 'mean' ? found.mean() : found; // (T, S)
  if ('word' in of)
    return Array.from({ length: framesOf(trace) }, (_, n) => data.slice(n * count, (n + 1) * count) as Float32Array);
  return Array.from({ length: words }, (_, word) =>
    padded(
      Float32Array.from({ length: count }, (_, patch) => data[patch * shape[1] + word]),
      layer,
    ),
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

/** Give the other film this code at a step, instead of another one; null: the one that is sampled. */
export function forceCode(step: number, code: number | null): void {
  const others = changesOf(router.params.changes).filter((one) => one.kind !== 'force_token' || one.step !== step);
  const changes: Intervention[] = code === null ? others : [...others, { kind: 'force_token', step, token: code }];
  const none = changes.length === 0;
  router.go({
    params: { changes: none ? null : JSON.stringify(changes), from: none ? null : router.param('from', `${step}`) },
  });
}

/** A change in words. */
export function changeLabel(trace: TraceInfo, change: Intervention): string {
  if (change.kind === 'mask_token') return `“${pieceAt(trace, change.sequence, change.position)}”`;
  if (change.kind === 'force_token') return t('draw.forced', { code: change.token, step: change.step + 1 });
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
