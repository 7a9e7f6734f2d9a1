// What the object queries of a detector predict after each layer.

import type { Tensor } from '../lib/tensor';
import type { AttentionInfo, TraceInfo } from '../lib/types';

export interface QueryBox {
  query: number;
  label: number;
  score: number; // of the most likely class other than "no object"
  box: [number, number, number, number]; // x_min, y_min, x_max, y_max in shares of the image
}

/** The predictions of all queries after a layer, from boxes (layers, Q, 4) and probabilities (layers, Q, L + 1). */
export function queryBoxes(boxes: Tensor, probabilities: Tensor, layer: number): QueryBox[] {
  const [, queries, classes] = probabilities.shape;
  return Array.from({ length: queries }, (_, query) => {
    const row = layer * queries + query;
    let label = 0;
    for (let n = 1; n < classes - 1; n++)
      if (probabilities.data[row * classes + n] > probabilities.data[row * classes + label]) label = n;
    const [left, top, right, bottom] = boxes.data.slice(row * 4, row * 4 + 4);
    return { query, label, score: probabilities.data[row * classes + label], box: [left, top, right, bottom] };
  });
}

/** The attention layers in which queries attend to the image: cross-attention, else self-attention. */
export function queryAttentions(trace: TraceInfo): AttentionInfo[] {
  const cross = trace.attentions.filter((one) => one.kind === 'cross');
  return cross.length ? cross : trace.attentions.filter((one) => one.kind === 'self');
}

/** The center of a box: x, y. */
export const centerOf = ({ box }: QueryBox): [number, number] => [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];

/** The box as attributes of a rectangle. */
export const boxPlace = ({ box }: QueryBox): Record<'x' | 'y' | 'width' | 'height', number> => ({
  x: box[0],
  y: box[1],
  width: Math.max(0, box[2] - box[0]),
  height: Math.max(0, box[3] - box[1]),
});

export const areaOf = ({ box }: QueryBox): number => (box[2] - box[0]) * (box[3] - box[1]);

/** Distinct colors of classes. */
export const classColor = (label: number): string => `hsl(${(label * 137.5 + 340) % 360} 85% 48%)`;
