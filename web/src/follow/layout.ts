// The picture of a flow as a pure function of time: towers of rows above a rail of tokens. One row is open at a time.

import { tokenLabel } from '../components/tokenText';
import type { Move, Scene } from './scenes';
import type { TokenSequence, TraceInfo, TraceToken } from '../lib/types';

export interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}
export interface Rail {
  sequence: TokenSequence;
  followed: number;
  y: number; // its top
  x: (token: number, of?: TokenSequence) => number; // of: of a later stage
  room: number; // for the label of a token, in two lines; infinite in one; 0 if only the followed one is labelled
  picture: Box | null; // of the image
}
export interface Tower {
  strip: { x: number; w: number };
  word: number; // x of the words read; NaN without
  label: number;
  rail: Rail;
  scenes: number[];
}
export interface Plan {
  width: number;
  height: number;
  narrow: boolean; // one tower at a time
  towers: Tower[];
  scenes: Scene[];
  trace: TraceInfo;
  extent: [number, number]; // width and height of the image, as patches count them
}
export type Measure = (text: string) => number;

export const ease = (x: number): number => {
  const t = Math.max(0, Math.min(1, x));
  return t * t * (3 - 2 * t);
};
export const mix = (a: number, b: number, t: number): number => a + (b - a) * t;
/** The progress of a part of the scene that goes from one moment to another. */
export const during = (t: number, from: number, to: number): number => ease((t - from) / (to - from));

const LIFT = 0.12;
const TOP = 34; // room above the rows, for the chips of the encoder's output
const SETTLE = 0.88; // when the last move ends and the head reads

export interface Progress {
  lift: number;
  moves: number[]; // of each move
  read: number;
}

export function progressOf(scene: Scene, u: number): Progress {
  const weights = scene.moves.map((move) => (move.kind === 'skip' ? 0.2 : 1));
  const whole = weights.reduce((a, b) => a + b, 0);
  let from = LIFT;
  const moves = weights.map((weight) => {
    const to = from + ((SETTLE - LIFT) * weight) / whole;
    const share = Math.max(0, Math.min(1, (u - from) / (to - from)));
    from = to;
    return share;
  });
  return { lift: during(u, 0, LIFT), moves, read: during(u, SETTLE, 0.97) };
}

/** How far the sum of a move is done. */
export const merged = (move: Move, progress: number): number =>
  move.delta ? during(progress, 0.66, 1) : ease(progress);

export function planOf(scenes: Scene[], trace: TraceInfo, width: number, height: number, measure: Measure): Plan {
  const boxes = trace.sequences.flatMap((one) => one.tokens.flatMap((token) => token.box ?? []));
  const side = (n: number): number => Math.max(1, ...boxes.map((size, i) => (i % 4 === n ? size + boxes[i + 2] : 0)));
  const extent: [number, number] = [side(0), side(1)];
  const count = Math.max(...scenes.map((scene) => scene.tower)) + 1;
  const narrow = width < 700 && count > 1;
  const gap = narrow ? 0 : 28;
  const wide = narrow ? width : (width - gap * (count - 1)) / count;
  const towers = Array.from({ length: count }, (_, n): Tower => {
    const own = scenes.flatMap((scene, i) => (scene.tower === n ? [i] : []));
    const [left, label] = [n * (wide + gap), wide < 420 ? 40 : 64];
    const reads = own.some((i) => scenes[i].reading);
    const strip = { x: left + label, w: wide - label - (reads ? (wide < 420 ? 84 : 150) : 8) };
    const first = scenes[own[0]].pass;
    const sequence = trace.sequences.find((one) => one.name === first.sequence)!;
    const boxed = own.some((i) => scenes[i].reading?.box);
    const pictured = boxed || sequence.kind === 'patches';
    const rail = railOf(sequence, first.position, strip, height, pictured ? extent : null, measure);
    return { strip, word: reads ? strip.x + strip.w + 12 : NaN, label: left, rail, scenes: own };
  });
  return { width, height, narrow, towers, scenes, trace, extent };
}

/** The part of the image that a token stands for, in shares of its width and height. */
export function cropOf({ box }: TraceToken, [w, h]: [number, number]): Box | null {
  return box ? { x: box[0] / w, y: box[1] / h, w: box[2] / w, h: box[3] / h } : null;
}
/** A part of a picture, on the page. */
export const inside = (outer: Box, { x, y, w, h }: Box): Box => ({
  ...{ x: outer.x + x * outer.w, y: outer.y + y * outer.h, w: w * outer.w, h: h * outer.h },
});

function railOf(
  sequence: TokenSequence,
  followed: number,
  strip: { x: number; w: number },
  height: number,
  extent: [number, number] | null, // of the image to draw
  measure: Measure,
): Rail {
  const high = extent ? Math.min(220, 0.3 * height) : 48;
  const y = height - high;
  if (extent) {
    const w = Math.min(strip.w * 0.7, ((high - 12) * extent[0]) / extent[1]);
    const picture = { x: strip.x + (strip.w - w) / 2, y: y + 10, w, h: (w * extent[1]) / extent[0] };
    const others = sequence.tokens.flatMap((token, n) => (token.box ? [] : [n]));
    const half = Math.ceil(others.length / 2);
    const x = (n: number, of = sequence): number => {
      const crop = of.tokens[n] && cropOf(of.tokens[n], extent);
      if (crop) return picture.x + (crop.x + crop.w / 2) * w;
      const [side, place] = [picture.x - strip.x, others.indexOf(n)]; // words and queries stand beside the picture
      const left = place < half ? strip.x : picture.x + w;
      return left + (side * ((place % half) + 0.5)) / half;
    };
    return { sequence, followed, y, x, room: 0, picture };
  }
  const widths = sequence.tokens.map((token) => measure(tokenLabel(token.piece)) + 14);
  const whole = widths.reduce((a, b) => a + b, 0);
  const even = strip.w / widths.length;
  let at = strip.x + Math.max(0, (strip.w - whole) / 2);
  const natural = widths.map((w) => (at += w) - w / 2);
  const x = (n: number): number => (whole <= strip.w ? natural[n] : strip.x + even * (n + 0.5));
  return { sequence, followed, y, x, room: whole <= strip.w ? Infinity : even < 15 ? 0 : 2 * even - 6, picture: null };
}

/** How open the row of a scene is. */
const openness = (plan: Plan, scene: number, t: number): number =>
  during(t, scene - 0.1, scene + 0.12) *
  (scene === plan.scenes.length - 1 ? 1 : 1 - during(t, scene + 0.96, scene + 1.12));

export interface Row extends Box {
  scene: number;
  open: number;
  strip: Box;
}

/** The rows of a tower, from the bottom. */
export function rowsOf(plan: Plan, tower: Tower, t: number): Row[] {
  const open = tower.scenes.map((scene) => openness(plan, scene, t));
  const weights = open.map((one) => 1 + one * Math.max(2.2, 0.55 * tower.scenes.length));
  const unit = (tower.rail.y - 8 - TOP) / weights.reduce((a, b) => a + b, 0);
  let bottom = tower.rail.y - 8;
  return tower.scenes.map((scene, n) => {
    const h = weights[n] * unit;
    bottom -= h;
    const high = Math.min(h - 8, 11 + 9 * open[n]);
    const strip = { x: tower.strip.x, y: bottom + 5 + 5 * open[n], w: tower.strip.w, h: high };
    return { scene, open: open[n], x: tower.label, y: bottom, w: tower.strip.w, h, strip };
  });
}

/** Where the view begins: on a narrow page it shows one tower, and glides to the next. */
export function cameraOf(plan: Plan, t: number): number {
  if (!plan.narrow) return 0;
  const scene = Math.min(plan.scenes.length - 1, Math.floor(t));
  const here = plan.scenes[scene].tower;
  const before = plan.scenes[Math.max(0, scene - 1)].tower;
  return plan.width * mix(before, here, during(t - scene, 0, 0.2));
}

export interface SourceChip {
  move: number;
  token: number;
  label: string;
  sequence: string;
  crop: Box | null; // of the image, in shares
  share: number; // of the strength of all sources
  from: [number, number]; // where its ribbon begins
  crossing: boolean;
  above: boolean; // its ribbon comes from the top of the encoder's tower
}

/** The sources of a scene with the places of their chips; chips of one attention layer do not overlap. */
export function chipsOf(plan: Plan, tower: Tower, row: Row, t: number): SourceChip[] {
  const scene = plan.scenes[row.scene];
  const chips: SourceChip[] = [];
  for (const [n, move] of scene.moves.entries()) {
    const found = move.attention;
    if (!found) continue;
    const crossing = move.kind === 'cross';
    const memory = crossing ? plan.towers[plan.towers.indexOf(tower) - 1] : undefined;
    const rail = memory && !plan.narrow ? memory.rail : tower.rail;
    const keys = plan.trace.attentions.find((one) => one.name === found.name)!.keys;
    const sequence = plan.trace.sequences.find((one) => one.name === keys)!;
    const top = memory && !plan.narrow ? rowsOf(plan, memory, t).at(-1)! : null;
    const own = found.sources.map((source, i): SourceChip => {
      const share = source.strength / found.total;
      const x = crossing && !top ? tower.strip.x + tower.strip.w * (0.2 + 0.3 * i) : rail.x(source.position, sequence);
      const y = top ? top.y - 12 : row.y + row.h - (crossing ? 46 : 14);
      const token = sequence.tokens[source.position];
      return {
        ...{ move: n, token: source.position, sequence: keys, label: tokenLabel(token.piece), share },
        ...{ crop: cropOf(token, plan.extent), from: [x, y], crossing, above: top !== null },
      };
    });
    own.sort((a, b) => a.from[0] - b.from[0]);
    const room = crossing && top ? plan.towers[0].strip : tower.strip;
    for (let i = 1; i < own.length; i++)
      own[i].from[0] = Math.max(own[i].from[0], own[i - 1].from[0] + (own[i].crop ? 36 : 62));
    const over = Math.max(0, (own.at(-1)?.from[0] ?? 0) - (room.x + room.w - 24));
    for (const one of own) one.from[0] -= over;
    chips.push(...own);
  }
  return chips;
}

/** Where the row of units begins: on the side with more room. */
export const unitsLeft = (strip: { x: number; w: number }, x: number): number =>
  x < strip.x + strip.w / 2 ? strip.x + strip.w - 176 : strip.x;
