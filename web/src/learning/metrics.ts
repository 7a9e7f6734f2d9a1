// Pairs the training and validation curves of a metric.

import type { RunInfo } from '../lib/types';

export interface Metric {
  name: string;
  lines: { of: 'train' | 'valid'; curve: { step: number[]; value: number[] } }[];
}

/** `train.loss` and `valid.loss` become one metric, `loss`; names without a prefix belong to training. */
export function curvesOf(curves: RunInfo['curves']): Metric[] {
  const found = new Map<string, Metric>();
  for (const [key, curve] of Object.entries(curves)) {
    if (!curve.step.length) continue;
    const valid = /^valid(ation)?[._/ ]/.test(key);
    const name = key.replace(/^(train(ing)?|valid(ation)?)[._/ ]/, '');
    const metric = found.get(name) ?? { name, lines: [] };
    metric.lines.push({ of: valid ? 'valid' : 'train', curve });
    found.set(name, metric);
  }
  return [...found.values()];
}
