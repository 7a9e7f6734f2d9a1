// A token's flow as scenes: about twelve, each with the vectors that the strip shows and what is added to it.

import { moments } from '../stages/vectorMath';
import type {
  ResidualUpdate,
  StackInfo,
  StackPass,
  TokenFlow,
  TokenReading,
  AttentionSources,
  ActiveUnit,
} from '../lib/types';

const MOST = 12; // scenes
export const SECONDS = 2.5; // of a scene

export type MoveKind = 'position' | 'self' | 'cross' | 'ffn' | 'parallel' | 'norm' | 'skip';

/** One change of the strip: `delta` is added to `from`; `to` is the sum, normed in post-norm models. */
export interface Move {
  kind: MoveKind;
  from: Float32Array;
  delta: Float32Array | null; // null: no sum, but layers that are not shown or a norm
  to: Float32Array;
  normed: boolean; // `to` is not the sum
  attention: AttentionSources | null;
  units: ActiveUnit[];
  stage: string; // its stage in the model
}

export interface Scene {
  kind: 'start' | 'layers' | 'output';
  pass: StackPass;
  tower: number; // passes through stages of one encoder share a tower
  row: number; // in the tower, from the bottom
  layers: [number, number]; // first and last
  shown: number; // the layer whose attention and units are shown
  moves: Move[];
  reading: TokenReading | null;
}

const subtract = (a: Float32Array, b: Float32Array): Float32Array => a.map((x, i) => x - b[i]);

function moveOf(update: ResidualUpdate, vector: (name: string) => Float32Array): Move {
  const to = vector(update.after);
  const from = update.before === null ? to : vector(update.before);
  const kinds = update.stages.slice(0, -1).map((id) => id.split('.').at(-1) as MoveKind);
  const starts = update.kind === 'embedding' || update.kind === 'merging';
  return {
    kind: starts ? 'position' : kinds.length > 1 ? 'parallel' : (kinds[0] ?? 'norm'),
    from,
    delta: update.before === null || update.kind === 'final_norm' ? null : subtract(vector(update.sum), from),
    to,
    normed: update.sum !== update.after,
    attention: update.attention,
    units: update.units,
    stage: update.stages[0],
  };
}

/** How many scenes the layers of each pass get, at most `room` together; the last pass goes first. */
export function shareScenes(layers: number[], room: number): number[] {
  const before = layers.slice(0, -1).reduce((sum, n) => sum + n, 0);
  const last = layers.at(-1) ?? 0;
  const main = Math.min(last, Math.max(room - before, Math.ceil((2 * room) / 3)));
  const each = (n: number): number => Math.max(1, Math.min(n, Math.floor(((room - main) * n) / (before || 1))));
  return [...layers.slice(0, -1).map(each), main];
}

/** The layers of a pass in `count` groups of similar size, each as its updates. */
function groups(updates: ResidualUpdate[], count: number): ResidualUpdate[][][] {
  const byLayer: ResidualUpdate[][] = [];
  for (const one of updates) if (one.layer !== null) (byLayer[one.layer] ??= []).push(one);
  const cut = (n: number): number => Math.round((n * byLayer.length) / count);
  return Array.from({ length: count }, (_, n) => byLayer.slice(cut(n), cut(n + 1)));
}

export function scenesOf(flow: TokenFlow, stacks: StackInfo[]): Scene[] {
  const depth = flow.passes.map((pass) => new Set(pass.updates.map((one) => one.layer).filter((n) => n !== null)).size);
  const counts = shareScenes(depth, MOST - flow.passes.length - 1);
  const scenes: Scene[] = [];
  let tower = -1;
  for (const [n, pass] of flow.passes.entries()) {
    const known = new Map<string, Float32Array>();
    const vector = (name: string): Float32Array => {
      if (!known.has(name)) known.set(name, Float32Array.from(pass.vectors[name]));
      return known.get(name)!;
    };
    if (!stacks.find((stack) => stack.name === pass.stack)?.merging) tower++;
    let row = scenes.filter((one) => one.tower === tower).length;
    const add = (
      kind: Scene['kind'],
      moves: Move[],
      reading: TokenReading | null,
      first = -1,
      to = -1,
      shown = -1,
    ): void => {
      scenes.push({ kind, pass, tower, row: row++, layers: [first, to], shown, moves, reading });
    };
    const [start] = pass.updates;
    add('start', [moveOf(start, vector)], start.reading ?? null);
    for (const group of groups(pass.updates, counts[n])) {
      const moves = group.map((layer) => layer.map((update) => moveOf(update, vector)));
      const change = moves.map(
        (all) => moments(subtract(all.at(-1)!.to, all[0].from)).norm / moments(all[0].from).norm,
      );
      const best = change.indexOf(Math.max(...change));
      const skip = (from: Float32Array, to: Float32Array): Move[] =>
        from === to || from.every((x, i) => x === to[i])
          ? []
          : [{ kind: 'skip', from, delta: null, to, normed: false, attention: null, units: [], stage: '' }];
      const first = group[0][0].layer!;
      const after = moves.at(-1)!.at(-1)!.to;
      const shown = moves[best];
      add(
        'layers',
        [...skip(moves[0][0].from, shown[0].from), ...shown, ...skip(shown.at(-1)!.to, after)],
        group.at(-1)!.at(-1)!.reading ?? null,
        first,
        first + group.length - 1,
        first + best,
      );
    }
    if (n === flow.passes.length - 1) {
      const last = pass.updates.at(-1)!;
      const { to } = scenes.at(-1)!.moves.at(-1)!;
      const still: Move = {
        kind: 'skip',
        from: to,
        delta: null,
        to,
        normed: false,
        attention: null,
        units: [],
        stage: 'head',
      };
      add('output', [last.kind === 'final_norm' ? moveOf(last, vector) : still], scenes.at(-1)!.reading);
    }
  }
  return scenes;
}
