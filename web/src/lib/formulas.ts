// Formulas that depend on the architecture, e.g. with or without bias.

import type { ModelOutline, StackInfo } from './types';

const added = (there: boolean, name: string): string => (there ? ` + ${name}` : '');

/** Two projections with an activation between them, or gate, up and down projections. */
export function feedForward(stack: Pick<StackInfo, 'gated' | 'biases'> | null, activation = '\\sigma'): string {
  const bias = (part: string, name: string): string => added(stack?.biases.includes(part) ?? false, name);
  if (!stack?.gated) return `W_2\\,${activation}(W_1 x${bias('up', 'b_1')})${bias('down', 'b_2')}`;
  const up = `W_\\text{up}\\,x${bias('up', 'b_\\text{up}')}`;
  return `W_\\text{down}\\big(${activation}(W_\\text{gate}\\,x${bias('gate', 'b_\\text{gate}')}) \\odot ${stack.biases.includes('up') ? `(${up})` : up}\\big)${bias('down', 'b_\\text{down}')}`;
}

/** The logits of the output head. */
export const scores = (head: ModelOutline['head'] | undefined, x: string): string =>
  `W\\,${x}${added(head?.bias ?? false, 'b')}`;

/** The positional encoding. */
export const PE = '\\mathrm{PE}';

/** Sine and cosine, as two halves of the table or as even and odd columns. */
export function waves(position: StackInfo['position']): [string, string] {
  const angle = `t / ${position.base ?? 10000}^{2i/d}`;
  const [sines, cosines] = position.layout === 'halves' ? ['i', 'i+d/2'] : ['2i', '2i+1'];
  return [`${PE}(t,\\,${sines}) = \\sin(${angle})`, `${PE}(t,\\,${cosines}) = \\cos(${angle})`];
}

/** The other schemes, for a query at position t and a key at position s. */
export const POSITIONS: Record<Exclude<StackInfo['position']['kind'], 'sinusoidal' | 'none'>, string> = {
  learned: `x_t \\leftarrow x_t + ${PE}(t)`,
  rotary: 'q_t^\\top k_s = (R_t\\, q)^\\top (R_s\\, k) = q^\\top R_{s-t}\\, k',
  relative: '\\text{score}_{ts} = q_t \\cdot k_s + b_h(s - t)',
  alibi: '\\text{score}_{ts} = \\frac{q_t \\cdot k_s}{\\sqrt{d_k}} - m_h\\,|t - s|',
};
