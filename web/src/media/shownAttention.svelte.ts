// The attention on show: rows for all layers, and the selected layer and head. The URL has the selection.

import { t } from '../lib/i18n.svelte';
import { resource, type Resource } from '../lib/resource.svelte';
import { router } from '../lib/router.svelte';
import { session } from '../lib/session.svelte';
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

export class ShownAttention {
  #query: () => Query;
  #names: [string, string]; // the URL parameters of the layer and the head
  #rows: Resource<AttentionRow[]>;
  #rolled: Resource<Float32Array>;

  /** keep: see `resource`. Create it while a component is set up. */
  constructor(query: () => Query, { names = ['look', 'by'] as [string, string], keep = false } = {}) {
    this.#query = query;
    this.#names = names;
    this.#rows = resource(() => this.#load(), { keep });
    this.#rolled = resource(() => {
      const { trace, at, row } = query();
      return this.layer === 'roll' ? means(session.source, trace, row ?? 0).then((all) => rollout(all, at)) : null;
    });
  }

  #load(): Promise<AttentionRow[]> {
    const { trace, layers, at, row } = this.#query();
    const sequences = patchSequences(trace);
    return Promise.all(
      layers.map((layer) => {
        const own = layer.queries === layer.keys && sequences.find(({ name }) => name === layer.queries);
        const query = own ? samePlace(sequences[0], own, at) : at;
        return attentionRow(session.source, trace, layer, { query, row });
      }),
    );
  }

  rows = $derived.by(() => this.#rows.value);
  problem = $derived.by(() => this.#rows.problem ?? this.#rolled.problem);
  rolls = $derived.by(() => (this.#query().rolls ?? false) && canRoll(this.#query().trace));
  #last = $derived.by(() => this.#query().layers.length - 1);
  layer: number | 'roll' = $derived.by(() => {
    const [name] = this.#names;
    if (this.rolls && router.param(name) === 'roll') return 'roll';
    return router.index(name, this.#last + 1, this.#query().layer ?? this.#last);
  });
  row = $derived.by(() => this.rows?.[this.layer === 'roll' ? this.#last : this.layer] ?? null);
  /** By default the sharpest one. */
  head: number | 'mean' = $derived.by(() => {
    const asked = router.param(this.#names[1]);
    if (asked === 'mean' || !this.row) return 'mean';
    return asked === '' ? sharpestHead(this.row) : router.index(this.#names[1], this.row.heads.length);
  });
  /** The weights of all keys. */
  all = $derived.by(() => {
    if (this.layer === 'roll') return this.#rolled.value;
    const { row, head } = this;
    return ((head === 'mean' ? row?.all?.mean() : row?.all?.of(head))?.data as Float32Array | undefined) ?? null;
  });
  /** The weights of the patches. */
  weights = $derived.by(() => {
    if (this.layer !== 'roll') return (this.head === 'mean' ? this.row?.mean : this.row?.heads[this.head]) ?? null;
    const prefix = this.#query().trace.sequences.find((one) => one.kind !== 'text')?.prefix;
    return this.#rolled.value?.subarray(prefix ?? 0) ?? null;
  });
  /** The layer and head in words. */
  name = $derived.by(() => {
    if (this.layer === 'roll') return t('patch_attention.roll');
    const { head } = this;
    return `${this.row?.name ?? ''} · ${head === 'mean' ? t('patch_attention.mean') : t('patch_attention.head_n', { n: head + 1 })}`;
  });

  choose = (layer: number | 'roll', head?: number | 'mean'): void =>
    router.go({ params: { [this.#names[0]]: layer, [this.#names[1]]: head ?? null } });
}
