import { expect, it } from 'vitest';
import { layoutTree, NODE, pathTo, type Node } from './treeLayout';

const node = (id: number, parent: number | null, step: number, rank: number, state: Node['state'] = 'kept'): Node =>
  ({ id, parent, step, rank, state, text: `t${id}` }) as Node;
const nodes = [node(0, null, 0, 1), node(1, null, 0, 0), node(2, 1, 1, 1), node(3, 0, 1, 0, 'pruned')];

it('places steps in columns and ranks in rows', () => {
  const { positions, columns } = layoutTree(nodes, true);
  expect(columns).toBe(2);
  expect(positions.get(1)!.y).toBeLessThan(positions.get(0)!.y);
  expect(positions.get(3)!.y).toBe(positions.get(1)!.y);
  expect(positions.get(3)!.x - positions.get(0)!.x).toBe(NODE.across);
});

it('moves nodes up when pruned ones are hidden', () => {
  const { positions } = layoutTree(nodes, false);
  expect(positions.has(3)).toBe(false);
  expect(positions.get(2)!.y).toBe(NODE.top);
});

it('follows parents back to the first token', () => {
  const byId = new Map(nodes.map((each) => [each.id, each]));
  expect(pathTo(byId, nodes[2]).map((each) => each.id)).toEqual([1, 2]);
});
