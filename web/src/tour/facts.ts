// The numbers and texts that the tour's explanations mention: the input and this model's sizes.

import { formatCount, formatPercent } from '../lib/format';
import type { ModelInfo, TraceInfo } from '../lib/types';

/** A text to be quoted within a sentence: shortened, without the period at its end. */
const cut = (text: string, most = 60): string =>
  text.length > most ? `${text.slice(0, most - 1)}…` : text.trim().replace(/[.。]$/, '');

export function factsOf(model: ModelInfo, trace: TraceInfo): Record<string, string | number> {
  const [stack] = model.outline.stacks;
  const read = trace.sequences[0];
  const self = trace.attentions.find((one) => one.stack === stack.name && one.kind === 'self');
  const said = trace.outcome;
  const answer =
    'num_tokens' in said || said.kind === 'answer'
      ? said.text
      : 'labels' in said
        ? (said.labels[0]?.label ?? '')
        : said.kind === 'fill'
          ? (said.masks[0]?.predictions[0]?.text ?? '')
          : '';
  return {
    text: cut(read.text ?? trace.input.text ?? trace.input.question ?? ''),
    answer: cut(answer.trim()),
    sure: 'labels' in said && said.labels[0] ? formatPercent(said.labels[0].probability) : '',
    tokens: read.tokens.length,
    words: read.tokens.filter((token) => token.id !== null).length,
    patches: read.grid ? read.grid[0] * read.grid[1] : read.tokens.length - read.prefix,
    d: model.outline.d_model,
    layers: stack.layers,
    decoder_layers: model.outline.stacks.at(-1)!.layers,
    heads: self?.heads ?? stack.heads,
    head_dim: self?.head_dim ?? stack.head_dim,
    d_ff: formatCount(stack.d_ff),
    vocab: formatCount(model.outline.head.vocab_size ?? 0),
    labels: model.outline.head.num_labels ?? 0,
    patch: model.image ? model.image.patch.join(' × ') : (model.series?.patch ?? 0),
    context: model.series?.context ?? 0,
    horizon: model.series?.horizon ?? 0,
    activation: stack.activation,
    norm: stack.norm,
    all_heads: formatCount(trace.attentions.reduce((sum, one) => sum + one.heads, 0)),
  };
}
