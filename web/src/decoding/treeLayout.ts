// Where each node of a beam search is drawn: a column a step, the likeliest at the top.

import type { SearchInfo } from '../lib/types';
import { visibleText } from '../components/tokenText';

export type Node = SearchInfo['nodes'][number];

export interface Placed {
  node: Node;
  x: number;
  y: number;
}

export const NODE = { width: 112, height: 38, across: 148, down: 46, top: 26, left: 6 } as const;

export interface Drawing {
  placed: Map<number, Placed>; // by the node's id
  columns: number;
  width: number;
  height: number;
}

/** A token without the blank before it. */
export const bare = (text: string): string => visibleText(text).trim() || visibleText(text);

/** Nodes stand in the column of their step by rank; where pruned ones are hidden the others move up. */
export function drawing(nodes: Node[], pruned: boolean): Drawing {
  const steps = new Map<number, Node[]>();
  for (const node of nodes) {
    if (!pruned && node.state === 'pruned') continue;
    const column = steps.get(node.step);
    if (column) column.push(node);
    else steps.set(node.step, [node]);
  }
  const placed = new Map<number, Placed>();
  let rows = 0;
  for (const [step, column] of steps) {
    column.sort((a, b) => a.rank - b.rank);
    column.forEach((node, row) =>
      placed.set(node.id, { node, x: NODE.left + step * NODE.across, y: NODE.top + row * NODE.down }),
    );
    rows = Math.max(rows, column.length);
  }
  const columns = Math.max(0, ...steps.keys()) + 1;
  return {
    placed,
    columns,
    width: NODE.left * 2 + (columns - 1) * NODE.across + NODE.width,
    height: NODE.top + rows * NODE.down,
  };
}

/** From the first token to this node. */
export function pathTo(nodes: Map<number, Node>, node: Node): Node[] {
  const path = [node];
  for (let at = node; at.parent !== null;) {
    at = nodes.get(at.parent)!;
    path.push(at);
  }
  return path.reverse();
}

/** A curve from a node's right side to its child's left side. */
export function link(from: Placed, to: Placed): string {
  const x = from.x + NODE.width;
  const y = from.y + NODE.height / 2;
  const end = to.y + NODE.height / 2;
  const half = (x + to.x) / 2;
  return `M${x} ${y}C${half} ${y} ${half} ${end} ${to.x} ${end}`;
}
