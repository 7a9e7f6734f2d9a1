// The attention on show: rows for all layers, and the selected layer and head. The URL has the selection.

import { t } from '../lib/i18n.svelte';
import { resource } from '../lib/resource.svelte';
import { router } from '../lib/router.svelte';
import { session } from '../lib/session.svelte';
import type { Problem } from '../lib/errors';
import { attentionRow, canRoll, means, rollout, sharpestHead, type AttentionRow } from './patchAttention';
import { patchSequences, samePlace } from './patches';
import type { AttentionInfo, TraceInfo } from '../lib/types';

interface Query {
  trace: TraceInfo;
  layers: AttentionInfo[];
  at: number; // position of the query; of patches, in the finest grid
  row?: number; // of the batch
  layer?: number; // unless another one is selected
  rolls?: boolean; // whether attention rollout can be selected
}

export interface ShownAttention {
  readonly rows: AttentionRow[] | null;
  readonly layer: number | 'roll';
  readonly head: number | 'mean'; // by default the sharpest one
  readonly row: AttentionRow | null; // of the layer
  readonly all: Float32Array | null; // weights of all keys
  readonly weights: Float32Array | null; // weights of the patches
  readonly rolls: boolean;
  readonly problem: Problem | null;
  choose: (layer: number | 'roll', head?: number | 'mean') => void;
}

/** names: the URL parameters of the layer and the head. keep: see `resource`. Call it while a component is set up. */
export function shownAttention(
  query: () => Query,
  { names = ['look', 'by'], keep = false }: { names?: [string, string]; keep?: boolean } = {},
): ShownAttention {
  const rows = resource(
    () => {
      const { trace, layers, at, row } = query();
      const sequences = patchSequences(trace);
      return Promise.all(
        layers.map((layer) => {
          const own = layer.queries === layer.keys && sequences.find(({ name }) => name === layer.queries);
          return attentionRow(session.source, trace, layer, {
            query: own ? samePlace(sequences[0], own, at) : at,
            row,
          });
        }),
      );
    },
    { keep },
  );
  const rolls = $derived((query().rolls ?? false) && canRoll(query().trace));
  const last = $derived(query().layers.length - 1);
  const layer = $derived(
    rolls && router.param(names[0]) === 'roll' ? 'roll' : router.index(names[0], last + 1, query().layer ?? last),
  );
  const rolled = resource(() => {
    const { trace, at, row } = query();
    return layer === 'roll' ? means(session.source, trace, row ?? 0).then((all) => rollout(all, at)) : null;
  });
  const row = $derived(rows.value?.[layer === 'roll' ? last : layer] ?? null);
  const head = $derived.by(() => {
    const asked = router.param(names[1]);
    if (asked === 'mean' || !row) return 'mean';
    return asked === '' ? sharpestHead(row) : router.index(names[1], row.heads.length);
  });
  const all = $derived.by(() => {
    if (layer === 'roll') return rolled.value;
    return ((head === 'mean' ? row?.all?.mean() : row?.all?.of(head))?.data as Float32Array | undefined) ?? null;
  });
  const weights = $derived.by(() => {
    if (layer !== 'roll') return (head === 'mean' ? row?.mean : row?.heads[head]) ?? null;
    const prefix = query().trace.sequences.find((one) => one.kind !== 'text')?.prefix ?? 0;
    return rolled.value?.subarray(prefix) ?? null;
  });
  return {
    get rows() {
      return rows.value;
    },
    get layer() {
      return layer;
    },
    get head() {
      return head;
    },
    get row() {
      return row;
    },
    get all() {
      return all;
    },
    get weights() {
      return weights;
    },
    get rolls() {
      return rolls;
    },
    get problem() {
      return rows.problem ?? rolled.problem;
    },
    choose: (layer, head) => router.go({ params: { [names[0]]: layer, [names[1]]: head ?? null } }),
  };
}

/** The selected layer and head in words. */
export function shownName({ layer, row, head }: ShownAttention): string {
  if (layer === 'roll') return t('patch_attention.roll');
  return `${row?.name ?? ''} · ${head === 'mean' ? t('patch_attention.mean') : t('patch_attention.head_n', { n: head + 1 })}`;
}
