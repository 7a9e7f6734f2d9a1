import { describe, expect, it } from 'vitest';
import { applySampling, sampleRank, sortDescending } from './sampling';

const OFF = { temperature: 1, topK: 0, topP: 1 };
const sample = (logits: number[], settings: Partial<typeof OFF>) => {
  const data = Float32Array.from(logits);
  return applySampling(data, sortDescending(data), { ...OFF, ...settings });
};

describe('sortDescending', () => {
  it('agrees with a comparison sort, negative numbers and -Infinity included', () => {
    const logits = Float32Array.from({ length: 5000 }, (_, i) => Math.sin(i * 12.9898) * 40);
    logits[17] = -Infinity;
    const sorted = [...sortDescending(logits)].map((id) => logits[id]);
    expect(sorted).toEqual([...logits].sort((a, b) => b - a));
  });
  it('keeps ties in the order of their ids', () => {
    expect([...sortDescending(Float32Array.of(1, 2, 1, 2))]).toEqual([1, 3, 0, 2]);
  });
});

describe('applySampling', () => {
  it('is a softmax without settings', () => {
    const { probabilities, candidates, mass } = sample([Math.log(1), Math.log(3)], {});
    expect([...probabilities].map((p) => p.toFixed(6))).toEqual(['0.750000', '0.250000']);
    expect(candidates).toBe(2);
    expect(mass).toBeCloseTo(1);
  });
  it('divides logits by the temperature', () => {
    expect(sample([0, 2], { temperature: 2 }).probabilities[0]).toBeCloseTo(1 / (1 + Math.exp(-1)));
  });
  it('keeps the k best, and ties of the last', () => {
    expect(sample([3, 2, 1, 0], { topK: 2 }).candidates).toBe(2);
    expect(sample([3, 2, 2, 0], { topK: 2 }).candidates).toBe(3);
  });
  it('keeps the fewest tokens that reach top-p, at least one', () => {
    const logits = [0.5, 0.3, 0.2].map(Math.log);
    expect(sample(logits, { topP: 0.01 }).candidates).toBe(1);
    expect(sample(logits, { topP: 0.6 }).candidates).toBe(2);
    expect(sample(logits, { topP: 0.9 }).candidates).toBe(3);
  });
  it('applies top-p to what top-k leaves', () => {
    expect(sample([0.5, 0.3, 0.2].map(Math.log), { topK: 2, topP: 0.6 }).candidates).toBe(1);
  });
});

describe('sampleRank', () => {
  it('follows the renormalized probabilities of the candidates', () => {
    const distribution = sample([0.5, 0.3, 0.2].map(Math.log), { topK: 2 });
    expect([0, 0.62, 0.63, 0.999].map((random) => sampleRank(distribution, random))).toEqual([0, 0, 1, 1]);
  });
});
