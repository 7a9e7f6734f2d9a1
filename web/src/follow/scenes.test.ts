import { expect, test } from 'vitest';
import { scenesOf, shareScenes } from './scenes';
import type { ResidualUpdate, StackInfo, TokenFlow } from '../lib/types';

/** A flow through stacks of these depths; the vector after layer n of a pass is (n + 1, 1). */
function flowOf(...depths: number[]): TokenFlow {
  const update = (layer: number | null, kind: ResidualUpdate['kind'], before: string | null, after: string) =>
    ({
      stages: ['a.0.ffn', 'a.0.norm_ffn'],
      kind,
      layer,
      before,
      sum: after,
      after,
      attention: null,
      units: [],
      reading: null,
    }) as ResidualUpdate;
  const passes = depths.map((depth, n) => ({
    stack: `stack${n}`,
    sequence: 'input',
    position: 0,
    updates: [
      update(null, 'embedding', null, '0'),
      ...Array.from({ length: depth }, (_, layer) => update(layer, 'add_norm', `${layer}`, `${layer + 1}`)),
    ],
    vectors: Object.fromEntries(Array.from({ length: depth + 1 }, (_, layer) => [layer, [layer + 1, 1]])),
  }));
  return { sequence: 'input', position: 0, row: 0, passes };
}
const stacks = (...merging: boolean[]): StackInfo[] =>
  merging.map((one, n) => ({ name: `stack${n}`, merging: one }) as StackInfo);

test('every layer has a scene while they fit, otherwise they are grouped', () => {
  expect(shareScenes([6, 3], 9)).toEqual([6, 3]);
  expect(shareScenes([6, 6], 9)).toEqual([3, 6]);
  expect(shareScenes([30], 10)).toEqual([10]);
  expect(shareScenes([24, 24], 9)).toEqual([3, 6]);
  for (const depths of [[6, 3], [12, 12], [48], [2, 2, 18, 2]])
    expect(scenesOf(flowOf(...depths), stacks(false, false, true, true)).length).toBeLessThanOrEqual(14);
});

test('scenes go through all layers in order, and the strip never jumps', () => {
  for (const depths of [[6, 6], [31], [1]]) {
    const scenes = scenesOf(flowOf(...depths), stacks(false, false));
    for (const [n, depth] of depths.entries()) {
      const layers = scenes.filter((one) => one.tower === n && one.kind === 'layers').map((one) => one.layers);
      expect(layers[0][0]).toBe(0);
      expect(layers.at(-1)![1]).toBe(depth - 1);
      for (let i = 1; i < layers.length; i++) expect(layers[i][0]).toBe(layers[i - 1][1] + 1);
    }
    const moves = scenes.flatMap((scene) => scene.moves.map((move) => ({ move, tower: scene.tower })));
    for (let i = 1; i < moves.length; i++)
      if (moves[i].tower === moves[i - 1].tower) expect(moves[i].move.from).toEqual(moves[i - 1].move.to);
    expect(scenes.at(-1)!.kind).toBe('output');
  }
});
