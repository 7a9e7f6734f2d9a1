// One sentence or two for each scene, with its tokens and numbers.

import { formatNumber, formatPercent } from '../lib/format';
import { t } from '../lib/i18n.svelte';
import { tokenLabel } from '../components/tokenText';
import { cosine, moments } from '../stages/vectorMath';
import { sceneLabel } from './paint';
import type { Move, Scene } from './scenes';
import type { TraceInfo } from '../lib/types';

/** The name of a token, for a sentence. */
export function tokenName(trace: TraceInfo, sequence: string, position: number): string {
  const of = trace.sequences.find((one) => one.name === sequence)!;
  const token = of.tokens[position];
  if (token.box && of.grid) {
    const patch = position - of.prefix;
    return t('follow.patch', { row: Math.floor(patch / of.grid[1]) + 1, column: (patch % of.grid[1]) + 1 });
  }
  if (token.span) return t('follow.steps', { span: token.piece });
  const query = of.kind === 'text' ? null : /^q(\d+)$/.exec(token.piece);
  return query ? t('follow.query', { n: query[1] }) : t('follow.token', { token: tokenLabel(token.piece) });
}

export const keysOf = (trace: TraceInfo, move: Move): string =>
  trace.attentions.find((one) => one.name === move.attention?.name)?.keys ?? '';

const capital = (words: string): string => words.charAt(0).toUpperCase() + words.slice(1);

export const captionOf = (scenes: Scene[], n: number, trace: TraceInfo): string => capital(sentences(scenes, n, trace));

function sentences(scenes: Scene[], n: number, trace: TraceInfo): string {
  const scene = scenes[n];
  const { pass, moves, reading } = scene;
  const token = tokenName(trace, pass.sequence, pass.position);
  const word = reading?.predictions[0];
  const share = formatPercent(word?.probability ?? 0);
  const last = moves.at(-1)!.to;
  if (scene.kind === 'output')
    return word
      ? t('follow.say.output', { word: tokenLabel(word.text), share })
      : t('follow.say.end', { norm: formatNumber(moments(last).norm) });
  if (scene.kind === 'start') {
    const size = last.length;
    if (scene.row > 0) return t('follow.say.merge', { size });
    const before = scenes[n - 1]?.pass;
    const start = t(moves[0].delta ? 'follow.say.start_position' : 'follow.say.start', { token, size });
    return before ? t('follow.say.then', { token, before: tokenName(trace, before.sequence, before.position) }) : start;
  }
  const [first, to] = scene.layers;
  const grouped = { range: `${first + 1}–${to + 1}`, layer: scene.shown + 1 };
  const layer = first < to ? t('follow.say.grouped', grouped) : sceneLabel(scene);
  const found = (crossing: boolean): Record<'source' | 'share', string> | null => {
    const move = moves.find((one) => one.attention && (one.kind === 'cross') === crossing);
    const [source] = move?.attention?.sources ?? [];
    if (!move || !source) return null;
    const own = !crossing && source.position === pass.position;
    const name = own ? '' : tokenName(trace, keysOf(trace, move), source.position);
    return { source: name, share: formatPercent(source.strength / move.attention!.total) };
  };
  const [self, cross] = [found(false), found(true)];
  const looks = [
    self ? t(self.source ? 'follow.say.self' : 'follow.say.keeps', { layer, token, ...self }) : `${layer}.`,
    cross ? t('follow.say.cross', cross) : '',
  ].join(' ');
  const angle = (180 / Math.PI) * Math.acos(Math.max(-1, Math.min(1, cosine(moves[0].from, last))));
  const earlier = scenes[n - 1].reading?.predictions[0]?.text;
  const then = word
    ? t(earlier === word.text ? 'follow.say.still' : 'follow.say.new', { word: tokenLabel(word.text), share })
    : t('follow.say.turns', { angle: angle.toFixed(0) });
  return `${looks} ${then}`.trim();
}
