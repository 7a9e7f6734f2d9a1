// The layout of a beam search tree: one column per step, the best candidate at the top.

import type { SearchInfo } from '../lib/types';
import { visibleText } from '../components/tokenText';

export type Node = SearchInfo['nodes'][number];

export interface NodePosition {
  node: Node;
  x: number;
  y: number;
}

export const NODE = { width: 112, height: 38, across: 148, down: 46, top: 26, left: 6 } as const;

export interface TreeLayout {
  positions: Map<number, NodePosition>; // by node id
  columns: number;
  width: number;
  height: number;
}

/** The text of a token without leading spaces. */
export const tokenName = (text: string): string => visibleText(text).trim() || visibleText(text);

/** Place the nodes of a step in one column, by rank; `pruned`: with the pruned ones. */
export function layoutTree(nodes: Node[], pruned: boolean): TreeLayout {
  const steps = new Map<number, Node[]>();
  for (const node of nodes) {
    if (!pruned && node.state === 'pruned') continue;
    const column = steps.get(node.step);
    if (column) column.push(node);
    else steps.set(node.step, [node]);
  }
  const positions = new Map<number, NodePosition>();
  let rows = 0;
  for (const [step, column] of steps) {
    column.sort((a, b) => a.rank - b.rank);
    column.forEach((node, row) =>
      positions.set(node.id, { node, x: NODE.left + step * NODE.across, y: NODE.top + row * NODE.down }),
    );
    rows = Math.max(rows, column.length);
  }
  const columns = Math.max(0, ...steps.keys()) + 1;
  return {
    positions,
    columns,
    width: NODE.left * 2 + (columns - 1) * NODE.across + NODE.width,
    height: NODE.top + rows * NODE.down,
  };
}

/** The nodes from the first token to this one. */
export function pathTo(nodes: Map<number, Node>, node: Node): Node[] {
  const path = [node];
  for (let at = node; at.parent !== null;) {
    at = nodes.get(at.parent)!;
    path.push(at);
  }
  return path.reverse();
}

/** A curve from a node's right side to its child's left side. */
export function edgePath(from: NodePosition, to: NodePosition): string {
  const x = from.x + NODE.width;
  const y = from.y + NODE.height / 2;
  const end = to.y + NODE.height / 2;
  const half = (x + to.x) / 2;
  return `M${x} ${y}C${half} ${y} ${half} ${end} ${to.x} ${end}`;
}
