// The name of a stage and its location in the model.

import { has, lookup, t } from '../lib/i18n.svelte';
import type { AttentionInfo, ModelInfo, StackInfo, Stage, TraceInfo } from '../lib/types';

/** The name of a stack, for people. */
export function stackTitle(name: string): string {
  const stage = /^stage(\d+)$/.exec(name);
  return stage ? t('diagram.stage', { n: stage[1] }) : lookup(`diagram.${name}`);
}

/** The name of the attentions of one kind in a stack. */
export function attentionGroup({ stack, kind }: Pick<AttentionInfo, 'stack' | 'kind'>): string {
  const known = `heads.${stack}_${kind}`;
  return has(known) ? t(known) : `${stackTitle(stack)}, ${t(`part.${kind}`)}`;
}

/** The module path of the block that an attention belongs to. */
export const blockOf = (attention: AttentionInfo): string => attention.name.replace(/\.\w+_attn$/, '');

export const stackOf = (model: ModelInfo, stage: Stage): StackInfo | null =>
  model.outline.stacks.find((stack) => stack.name === stage.stack) ?? null;

/** The last part of a stage's id: self, cross, ffn, norm_self, embed, ... */
export const partOf = (id: string): string => id.split('.').at(-1) ?? id;

/** The name of a stage. */
export function stageName(id: string, stack: StackInfo | null, trace: TraceInfo | null): string {
  const part = partOf(id);
  if (part === 'tokens') {
    const kind = trace?.sequences.find((one) => one.name === stack?.sequence)?.kind;
    return t(kind === 'patches' || kind === 'series' ? 'part.patches' : 'part.tokens');
  }
  if (part === 'self' && stack?.causal) return t('part.causal');
  if (part.startsWith('norm_'))
    return t(stack?.wiring === 'pre' || stack?.wiring === 'parallel' ? 'part.norm_add' : 'part.add');
  return lookup(`part.${part}`);
}

/** Its location: the stack and layer. */
export function stageWhere(id: string, stack: StackInfo | null): string {
  if (!stack) return '';
  const name = stackTitle(stack.name);
  const layer = id.split('.')[1];
  return /^\d+$/.test(layer) ? t('panel.where', { stack: name, layer: Number(layer) + 1, layers: stack.layers }) : name;
}

/** Name and location, for a list or a screen reader. */
export function stageLabel(id: string, stack: StackInfo | null, trace: TraceInfo | null): string {
  const where = stageWhere(id, stack);
  return where ? `${stageName(id, stack, trace)}, ${where}` : stageName(id, stack, trace);
}

/** 1.2M, 340k. */
export function count(n: number): string {
  if (n >= 1e9) return `${(n / 1e9).toPrecision(3)}B`;
  if (n >= 1e6) return `${(n / 1e6).toPrecision(3)}M`;
  if (n >= 1e4) return `${Math.round(n / 1e3)}k`;
  return n.toLocaleString('en-US');
}

/** The number of parameters of one layer of a stack. */
export function layerParameters(stack: StackInfo): number {
  const of = stack.parameters;
  const norms = stack.cross ? 3 : stack.wiring === 'parallel' ? 1 : 2;
  const all = norms * stack.layers + (stack.final_norm ? 1 : 0);
  const parts =
    ((of.self_attention ?? 0) + (of.cross_attention ?? 0) + (of.feed_forward ?? 0)) / Math.max(1, stack.layers);
  return Math.round(parts + ((of.norm ?? 0) * norms) / Math.max(1, all));
}
