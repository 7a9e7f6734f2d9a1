// The tokens at the top of the diagram: generated text, label or masked token.

import { formatNumber, formatPercent, t } from '../lib';
import type { NextTokenInfo, TraceToken, TraceInfo } from '../lib/types';

const said = (piece: string, special = false): TraceToken => ({
  id: null,
  piece,
  raw: null,
  start: null,
  end: null,
  bytes: null,
  special,
});

/** `next`: the predictions for a prompt without generated tokens. */
export function outputTokens(trace: TraceInfo, next: NextTokenInfo | null): TraceToken[] {
  const { outcome } = trace;
  if (next)
    return next.predictions
      .slice(0, 3)
      .map((word) => said(`${word.text.trim()} ${formatPercent(word.probability ?? 0)}`));
  switch (outcome.kind) {
    case 'translate':
    case 'caption':
    case 'generate': {
      const target = trace.sequences.find((one) => one.name === 'target');
      const tokens = target
        ? target.tokens.slice(target.prefix)
        : outcome.text.split(/(?<=\s)/).map((word) => said(word));
      return outcome.text || target ? tokens : [];
    }
    case 'fill':
      return outcome.masks.flatMap((mask) =>
        mask.predictions.slice(0, 3).map((word) => said(`${word.text} ${formatPercent(word.probability ?? 0)}`)),
      );
    case 'classify':
    case 'image':
    case 'ask':
      return outcome.labels.slice(0, 3).map(({ label, probability }) => said(`${label} ${formatPercent(probability)}`));
    case 'answer':
      return [said(outcome.text || t('output.none'))];
    case 'detect':
      return outcome.objects.slice(0, 3).map(({ label, score }) => said(`${label} ${formatPercent(score)}`));
    case 'segment':
    case 'draw':
      return [];
    case 'similarity':
      return [said(formatNumber(outcome.cosine))];
    case 'embed':
      return [said(`${outcome.dims}`)];
    case 'forecast':
      return [said(`+${outcome.horizon}`)];
  }
}
