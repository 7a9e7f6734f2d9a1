// The roles of the heads of a trace, requested once and shared by all views.

import { session } from '../lib/session.svelte';
import type { AttentionInfo, HeadsInfo } from '../lib/types';
import { has, lookup, t } from '../lib/i18n.svelte';

export type HeadInfo = HeadsInfo['attentions'][number]['heads'][number];

const KEPT = 8; // traces
const asked = new Map<string, Promise<HeadsInfo>>();

export function rolesOf(trace: string): Promise<HeadsInfo> {
  let coming = asked.get(trace);
  if (!coming) {
    coming = session.source.heads(trace);
    coming.catch(() => asked.delete(trace));
    asked.set(trace, coming);
    if (asked.size > KEPT) asked.delete(asked.keys().next().value!);
  }
  return coming;
}

/** The cross-attention layer that links words most sharply; the last one of equals. */
export function sharpest(crosses: AttentionInfo[], { attentions }: HeadsInfo): AttentionInfo | null {
  const sharpness = (name: string): number => attentions.find((heads) => heads.name === name)?.sharpness ?? 0;
  return crosses.toSorted((a, b) => sharpness(a.name) - sharpness(b.name)).at(-1) ?? null;
}

const DULL = ['self', 'first', 'last', 'separator', 'punctuation', 'word', 'sink', 'spread'];

/** The head of a layer that tells most: the clearest role that links different words, else the sharpest head. */
export function tellingHead(attention: AttentionInfo, { attentions }: HeadsInfo): number {
  const heads = attentions.find((one) => one.name === attention.name)?.heads ?? [];
  const value = ({ role, share, chance, entropy }: HeadInfo): number =>
    role === null ? -entropy : DULL.includes(role) ? share - chance - 100 : 100 + share - chance;
  return heads.toSorted((a, b) => value(b) - value(a))[0]?.head ?? 0;
}

/** The display name of a role; an unknown role keeps its name. key: the token that all queries attend to. */
export function roleName(role: string | null, key = ''): string {
  if (role === null) return t('heads.role_none');
  if (key && (role === 'word' || role === 'sink')) return t(`heads.role_${role}_on`, { token: key });
  return has(`heads.role_${role}`) ? lookup(`heads.role_${role}`) : role;
}
