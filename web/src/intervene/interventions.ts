// Interventions: how they are stored in the URL and described in words.

import { router } from '../lib/router.svelte';
import type { Intervention, Kind, TraceInfo } from '../lib/types';
import { lookup, t } from '../lib/i18n.svelte';
import { visibleText } from '../components/tokenText';
import { blockOf, stackTitle } from '../model/stageNames';

export const MOST = 256; // the server's limit

const WHATS = ['heads', 'layers', 'tokens', 'residual', 'positions'] as const;
export type What = (typeof WHATS)[number];

// Two towers and detectors take no masks and positions from outside; the tokens of later stages are merged patches.
const WITHOUT: Partial<Record<Kind, What[]>> = {
  similarity: ['tokens', 'positions'],
  detect: ['tokens', 'positions'],
  ask: ['positions'], // words and patches have their own
  segment: ['layers', 'tokens', 'residual', 'positions'], // only the decoder runs again
};

/** What can be changed in models of a kind. */
export const changeable = (kind: Kind): What[] => WHATS.filter((one) => !WITHOUT[kind]?.includes(one));

export function keep(changes: Intervention[], step = true): void {
  router.go({ params: { changes: changes.length ? JSON.stringify(changes) : null } }, step);
}

export const same = (one: Intervention, other: Intervention): boolean => told(one) === told(other);
const told = (change: Intervention): string => JSON.stringify(Object.entries(change).sort());

export const isOn = (changes: Intervention[], change: Intervention): boolean =>
  changes.some((one) => same(one, change));

/** Add this change, or remove it if it is there. */
export function toggled(changes: Intervention[], change: Intervention): Intervention[] {
  return isOn(changes, change) ? changes.filter((one) => !same(one, change)) : [...changes, change].slice(0, MOST);
}

/** What a change applies to; there is at most one change for each. */
export const whereOf = (one: Intervention): string =>
  one.kind === 'scale_residual'
    ? `r ${one.name} ${one.position}`
    : one.kind === 'scale_positions'
      ? `p ${one.stack}`
      : told(one);

/** Add this change, replacing one with the same target, e.g. the last value of a slider. */
export function replaced(changes: Intervention[], change: Intervention): Intervention[] {
  return [...changes.filter((one) => whereOf(one) !== whereOf(change)), change].slice(0, MOST);
}

export function pieceAt(trace: TraceInfo, sequence: string, position: number): string {
  const token = trace.sequences.find((one) => one.name === sequence)?.tokens[position];
  return token ? visibleText(token.piece).trim() : `${position}`;
}

/** The layer and kind of an attention, in words. */
export function attentionNamed(trace: TraceInfo, name: string): string {
  const attention = trace.attentions.find((one) => one.name === name);
  if (!attention) return name;
  return t(`intervene.attention.${attention.kind}`, {
    stack: stackTitle(attention.stack),
    layer: attention.layer + 1,
  });
}

/** A head in few words: Decoder 2.6, cross 3.1. */
export function headNamed(trace: TraceInfo, name: string, head: number): string {
  const attention = trace.attentions.find((one) => one.name === name);
  if (!attention) return `${name} ${head + 1}`;
  const where = { stack: stackTitle(attention.stack), layer: attention.layer + 1, head: head + 1 };
  return t(`intervene.head_short.${attention.kind}`, where);
}

export function blockNamed(trace: TraceInfo, block: string): string {
  const attention = trace.attentions.find((one) => blockOf(one) === block);
  return attention ? t('intervene.block', { stack: stackTitle(attention.stack), layer: attention.layer + 1 }) : block;
}

/** A point of the residual stream in words: layer and sublayer. */
export function siteNamed(trace: TraceInfo, name: string): string {
  const block = name.slice(0, name.lastIndexOf('.'));
  const site = name.slice(name.lastIndexOf('.') + 1);
  return `${blockNamed(trace, block)}, ${lookup(`intervene.site.${site}`)}`;
}

/** The sequence of a point of the residual stream. */
export function sequenceOfSite(trace: TraceInfo, site: string): string {
  const block = site.slice(0, site.lastIndexOf('.'));
  return trace.attentions.find((one) => blockOf(one) === block)?.queries ?? trace.sequences[0].name;
}

/** A change in words. */
export function said(trace: TraceInfo, change: Intervention): string {
  switch (change.kind) {
    case 'ablate_head':
      return t('intervene.label.ablate_head', {
        where: attentionNamed(trace, change.attention),
        head: change.head + 1,
      });
    case 'skip_layer':
      return t('intervene.label.skip_layer', { where: blockNamed(trace, change.block) });
    case 'mask_token':
      return t('intervene.label.mask_token', {
        token: pieceAt(trace, change.sequence, change.position),
        n: change.position + 1,
      });
    case 'swap_tokens':
      return t('intervene.label.swap', {
        one: pieceAt(trace, change.sequence, change.positions[0]),
        other: pieceAt(trace, change.sequence, change.positions[1]),
      });
    case 'scale_residual': {
      const sequence = sequenceOfSite(trace, change.name);
      return t('intervene.label.residual', {
        where: siteNamed(trace, change.name),
        token: pieceAt(trace, sequence, change.position),
        scale: change.scale,
      });
    }
    case 'patch':
      return t('intervene.label.patch', { where: siteNamed(trace, change.name) });
    case 'force_token':
      return t('draw.forced', { code: change.token, step: change.step + 1 });
    case 'scale_positions':
      return t('intervene.label.positions', {
        stack: stackTitle(change.stack),
        stretch: change.scale,
      });
  }
}
