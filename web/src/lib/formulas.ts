// The formulas that depend on how a model is made: a bias stands in them only where the model has one.

import type { Outline, StackInfo } from './types';

const added = (there: boolean, name: string): string => (there ? ` + ${name}` : '');

/** Two projections with the activation between them, or a gate, an up and a down. */
export function feedForward(stack: Pick<StackInfo, 'gated' | 'biases'> | null, activation = '\\sigma'): string {
  const bias = (part: string, name: string): string => added(stack?.biases.includes(part) ?? false, name);
  if (!stack?.gated) return `W_2\\,${activation}(W_1 x${bias('up', 'b_1')})${bias('down', 'b_2')}`;
  const up = `W_\\text{up}\\,x${bias('up', 'b_\\text{up}')}`;
  return `W_\\text{down}\\big(${activation}(W_\\text{gate}\\,x${bias('gate', 'b_\\text{gate}')}) \\odot ${stack.biases.includes('up') ? `(${up})` : up}\\big)${bias('down', 'b_\\text{down}')}`;
}

/** What the head makes of a vector before the softmax. */
export const scores = (head: Outline['head'] | undefined, x: string): string => `W\\,${x}${added(head?.bias ?? false, 'b')}`;

/** The two halves of the table of sines and cosines, or its even and odd columns. */
export function waves(position: StackInfo['position'], name: string, t: string): [string, string] {
  const angle = `${t} / ${position.base ?? 10000}^{2i/d}`;
  const [sines, cosines] = position.layout === 'halves' ? ['i', 'i+d/2'] : ['2i', '2i+1'];
  return [`${name}_{${t},\\,${sines}} = \\sin(${angle})`, `${name}_{${t},\\,${cosines}} = \\cos(${angle})`];
}
