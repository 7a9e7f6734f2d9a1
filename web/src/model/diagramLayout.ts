// The layout of the diagram: pure geometry from the model's outline, bottom (input) to top (output). A stage may have
// several shapes, e.g. a norm and the sum it belongs to.

import type { ModelInfo, StackInfo, TraceInfo } from '../lib/types';

export type Part =
  'tokens' | 'embed' | 'merge' | 'position' | 'self' | 'cross' | 'ffn' | 'norm' | 'add' | 'final' | 'head';

export interface Stop {
  id: string; // the stage it opens
  part: Part;
  x: number;
  y: number;
  w: number;
  h: number;
  mini: boolean; // drawn without text
  after?: string; // the stage that precedes it in the data flow: the sum after a pre-norm and its sublayer
}
export interface Line {
  d: string;
  role: 'branch' | 'memory' | 'position';
  id: string; // highlighted when the data has reached this stage
}
/** A layer, or several folded together (`to` > `layer`). Its stops and lines are relative to its corner. */
export interface Pane {
  key: string;
  stack: StackInfo;
  layer: number;
  to: number;
  open: boolean;
  x: number;
  y: number;
  w: number;
  h: number;
  stops: Stop[];
  lines: Line[];
}
export interface Column {
  stack: StackInfo;
  x: number;
  w: number;
  stream: { x: number; top: number; bottom: number }; // the residual stream
  panes: Pane[];
  stops: Stop[]; // outside the layers
  lines: Line[]; // relative to y
  y: number; // the bottom
  tokens: { x: number; y: number; w: number; h: number };
  answer: { x: number; y: number; w: number; h: number } | null; // the box of the output tokens
}
export interface DiagramLayout {
  width: number;
  height: number;
  columns: Column[];
  memory: { d: string; rail: number; taps: { id: string; d: string }[] } | null; // the encoder's keys and values
}

export interface Sizes {
  column: number;
  gutter: number;
  tokens: number[]; // height of the tokens below each stack
  answer: number; // height of the output
  compact: boolean; // no open layer; smaller shapes
}

/** What every part of the diagram shows. */
export interface Scene {
  model: ModelInfo;
  trace: TraceInfo | null;
  at: string; // the open stage
  first: string; // the tab stop
  compact: boolean;
  litAt: (stage: string) => boolean; // whether the data has reached it
  focus: (stage: string) => void;
}

const ANSWER_GAP = 24;
const HEAD = 40;
const FINAL = 24;
const EMBED = 38;
const POSITION = 34;
const ATTEND = 54;
const FEED = 38;
const STAGE_GAP = 14;
const MANY = 14; // layers beyond this are folded

const added = (stack: StackInfo): boolean => stack.position.kind === 'sinusoidal' || stack.position.kind === 'learned';
/** Positions that act inside attention instead of on the embedding. */
const inside = (stack: StackInfo): boolean => stack.position.name !== null && !added(stack);
const subs = (stack: StackInfo): ('self' | 'cross' | 'ffn')[] =>
  stack.cross ? ['self', 'cross', 'ffn'] : ['self', 'ffn'];

/** Groups of layers as pairs [first, last]; single layers and folded ranges. */
export function folds(layers: number, open: number, unfolded: boolean): [number, number][] {
  const alone = (n: number): boolean =>
    unfolded || layers <= MANY || n < 2 || n >= layers - 2 || Math.abs(n - open) <= 1;
  const runs: [number, number][] = [];
  for (let n = 0; n < layers; n++) {
    const last = runs.at(-1);
    if (!alone(n) && last && !alone(last[1])) last[1] = n;
    else runs.push([n, n]);
  }
  return runs;
}

/** The height of an open layer. */
function openHeight(stack: StackInfo): number {
  if (stack.wiring === 'parallel') return 30 + ATTEND + 22 + 8;
  const one = (part: string): number =>
    stack.wiring === 'res_post'
      ? (part === 'ffn' ? FEED : ATTEND) + 42
      : (stack.wiring === 'pre' ? 27 : 14) + (part === 'ffn' ? FEED : ATTEND) + (stack.wiring === 'pre' ? 16 : 42);
  return 8 + subs(stack).reduce((sum, part) => sum + one(part), 0);
}

/** The inside of an open layer, from bottom to top. */
function opened(stack: StackInfo, layer: number, height: number, stream: number): Pick<Pane, 'stops' | 'lines'> {
  const stops: Stop[] = [];
  const lines: Line[] = [];
  const left = 14;
  const right = stream - 30;
  const id = (what: string): string => `${stack.name}.${layer}.${what}`;
  const pill = (what: string, x: number, y: number): void =>
    void stops.push({ id: id(what), part: 'norm', x, y: y - 10, w: 48, h: 20, mini: false });
  const plus = (what: string, y: number, after?: string): void =>
    void stops.push({ id: id(what), part: 'add', x: stream - 8, y: y - 8, w: 16, h: 16, mini: false, after });
  let y = height - 4;
  if (stack.wiring === 'parallel') {
    const branch = y - 12;
    pill('norm_self', stream - 74, branch);
    const top = branch - 18 - ATTEND;
    const sum = top - 14;
    const half = (right - left - 10) / 2;
    for (const [n, part] of (['self', 'ffn'] as const).entries()) {
      const x = left + n * (half + 10);
      const middle = x + half / 2;
      stops.push({ id: id(part), part, x, y: top, w: half, h: ATTEND, mini: false });
      lines.push({
        d: `M${stream} ${branch} H${middle + 8} Q${middle} ${branch} ${middle} ${branch - 8} V${top + ATTEND}`,
        role: 'branch',
        id: id(part),
      });
      lines.push({
        d: `M${middle} ${top} V${sum + 6} Q${middle} ${sum} ${middle + 6} ${sum} H${stream - 8}`,
        role: 'branch',
        id: id('ffn'),
      });
    }
    if (inside(stack)) lines.push({ d: `M5 ${top + ATTEND / 2} H${left}`, role: 'position', id: id('self') });
    plus('norm_self', sum, id('ffn'));
    return { stops, lines };
  }
  const middle = (left + right) / 2;
  for (const part of subs(stack)) {
    const norm = id(`norm_${part}`);
    const high = part === 'ffn' ? FEED : ATTEND;
    const branch = y - (stack.wiring === 'pre' ? 11 : 4);
    const top = branch - (stack.wiring === 'pre' ? 16 : 10) - high;
    const sum = top - (stack.wiring === 'res_post' ? 14 : 10);
    lines.push({
      d: `M${stream} ${branch} H${middle + 8} Q${middle} ${branch} ${middle} ${branch - 8} V${top + high}`,
      role: 'branch',
      id: stack.wiring === 'pre' ? norm : id(part),
    });
    lines.push({
      d: `M${middle} ${top} V${sum + 6} Q${middle} ${sum} ${middle + 6} ${sum} H${stream - 8}`,
      role: 'branch',
      id: stack.wiring === 'pre' ? id(part) : norm,
    });
    if (stack.wiring === 'pre') pill(`norm_${part}`, stream - 74, branch);
    stops.push({ id: id(part), part, x: left, y: top, w: right - left, h: high, mini: false });
    if (part === 'self' && inside(stack))
      lines.push({ d: `M5 ${top + high / 2} H${left}`, role: 'position', id: id(part) });
    plus(`norm_${part}`, sum, stack.wiring === 'pre' ? id(part) : undefined);
    if (stack.wiring === 'post') pill(`norm_${part}`, stream - 24, sum - 20);
    if (stack.wiring === 'res_post') pill(`norm_${part}`, stream - 74, sum);
    y = sum - { pre: 6, res_post: 14, post: 32 }[stack.wiring];
  }
  return { stops, lines };
}

/** A closed layer: its parts, small, from left to right. */
function closed(stack: StackInfo, layer: number, height: number, stream: number): Pick<Pane, 'stops' | 'lines'> {
  const stops: Stop[] = [];
  const list = subs(stack);
  const left = 12;
  const tick = 6;
  const gap = 5;
  const wide = (stream - 18 - left - list.length * (tick + 3) - (list.length - 1) * gap) / list.length;
  const h = Math.min(16, height - 10);
  const y = (height - h) / 2;
  let x = left;
  const id = (what: string): string => `${stack.name}.${layer}.${what}`;
  const norm = (what: string): void => {
    stops.push({ id: id(what), part: 'norm', x, y, w: tick, h, mini: true });
    x += tick + 3;
  };
  for (const part of list) {
    const mine = stack.wiring === 'parallel' ? 'norm_self' : `norm_${part}`;
    const after = stack.wiring === 'post' || stack.wiring === 'res_post';
    if (!after && !(stack.wiring === 'parallel' && part === 'ffn')) norm(mine);
    stops.push({ id: id(part), part, x, y, w: wide, h, mini: true });
    x += wide + 3;
    if (after) norm(mine);
    x += gap - 3;
  }
  return { stops, lines: [] };
}

/** One stack from the tokens at the bottom upwards; y = 0 is its bottom, upwards negative, until it is placed. */
function column(
  stack: StackInfo,
  x: number,
  sizes: Sizes,
  open: number | null,
  unfolded: boolean,
  tokens: number,
  head: boolean,
): Column {
  const w = sizes.column;
  const stream = x + w - (sizes.compact ? 26 : 44);
  const stops: Stop[] = [];
  const lines: Line[] = [];
  const inset = 10;
  let y = -tokens;
  const strip = { x, y, w, h: tokens };
  y -= 16 + EMBED;
  const part = stack.merging ? 'merge' : 'embed';
  stops.push({ id: `${stack.name}.${part}`, part, x: x + inset, y, w: w - 2 * inset, h: EMBED, mini: false });
  lines.push({ d: `M${x + w / 2} ${y + EMBED + 15} V${y + EMBED + 1}`, role: 'branch', id: `${stack.name}.${part}` });
  const bottom = y;
  if (stack.position.name !== null) {
    y -= 16 + POSITION;
    const right = stream - 30;
    stops.push({
      id: `${stack.name}.position`,
      part: 'position',
      x: x + 14,
      y,
      w: right - x - 14,
      h: POSITION,
      mini: false,
    });
    const middle = y + POSITION / 2;
    if (added(stack)) {
      lines.push({ d: `M${right} ${middle} H${stream - 8}`, role: 'branch', id: `${stack.name}.position` });
      stops.push({
        id: `${stack.name}.position`,
        part: 'add',
        x: stream - 8,
        y: middle - 8,
        w: 16,
        h: 16,
        mini: false,
      });
    }
  }
  const from = y;
  y -= 14;
  const panes: Pane[] = [];
  const many = stack.layers > 8;
  const slim = sizes.compact ? 30 : many ? 23 : 27;
  for (const [layer, to] of folds(stack.layers, open ?? -9, unfolded)) {
    const isOpen = !sizes.compact && layer === open;
    const h = to > layer ? 40 : isOpen ? openHeight(stack) : slim;
    y -= h;
    const local = stream - x;
    const within =
      to > layer ? { stops: [], lines: [] } : isOpen ? opened(stack, layer, h, local) : closed(stack, layer, h, local);
    panes.push({ key: `${stack.name}.${layer}`, stack, layer, to, open: isOpen, x, y, w, h, ...within });
    y -= many ? 4 : 6;
  }
  // Positions that act inside attention run along the attention layers.
  if (inside(stack) && panes.length > 0) {
    lines.push({
      d: `M${x + 5} ${y + 8} V${from + POSITION / 2 - 6} Q${x + 5} ${from + POSITION / 2} ${x + 11} ${from + POSITION / 2} H${x + 14}`,
      role: 'position',
      id: `${stack.name}.position`,
    });
  }
  if (stack.final_norm) {
    y -= FINAL + 4;
    stops.push({ id: `${stack.name}.final`, part: 'final', x: stream - 34, y, w: 68, h: FINAL, mini: false });
    if (stream + 34 > x + w) stops.at(-1)!.x = x + w - 68;
    y -= 6;
  } else if (head) {
    y -= 14;
  }
  let answer: Column['answer'] = null;
  let streamTop = y - 6;
  if (head) {
    y -= 8 + HEAD;
    stops.push({ id: 'head', part: 'head', x: x + inset, y, w: w - 2 * inset, h: HEAD, mini: false });
    const top = y;
    y -= ANSWER_GAP - 8 + sizes.answer;
    answer = { x, y, w, h: sizes.answer };
    lines.push({ d: `M${x + w / 2} ${top - 1} V${y + sizes.answer + 4}`, role: 'branch', id: 'head' });
    streamTop = top + HEAD;
  }
  return {
    stack,
    x,
    w,
    y: 0,
    stream: { x: stream, top: streamTop, bottom },
    panes,
    stops,
    lines,
    tokens: strip,
    answer,
  };
}

/** The complete model. `open`: the open layer of each stack, or null. */
export function layoutDiagram(
  model: ModelInfo,
  sizes: Sizes,
  open: Record<string, number | null>,
  unfolded: boolean,
): DiagramLayout {
  const stacks = model.outline.stacks;
  const towers = model.architecture === 'two-tower';
  const columns: Column[] = [];
  for (const [n, stack] of stacks.entries()) {
    const below = stack.merging ? columns.at(-1) : undefined; // a later stage is above the one before
    const x = below?.x ?? (columns.length ? columns.at(-1)!.x + sizes.column + sizes.gutter : 0);
    const tokens = sizes.tokens[n] ?? 30;
    const head = !towers && n === stacks.length - 1;
    const made = column(stack, x, sizes, open[stack.name] ?? null, unfolded, tokens, head);
    if (below) shift(made, below.stream.top - STAGE_GAP);
    columns.push(made);
  }
  if (towers) joinTowers(columns, sizes);
  const tops = columns.map((one) => Math.min(one.answer?.y ?? one.stream.top - 14, one.stream.top));
  const height = 4 - Math.min(...tops) + 4;
  for (const one of columns) shift(one, height - 4);
  let memory: DiagramLayout['memory'] = null;
  const [from, into] = columns;
  if (columns.length === 2 && into.stack.cross) {
    const rail = from.x + from.w + sizes.gutter / 2;
    const start = from.stream;
    const taps = into.panes.map((pane) => {
      const cross = pane.stops.find((stop) => stop.part === 'cross');
      const y = pane.y + (cross ? cross.y + cross.h / 2 : pane.h / 2);
      const end = pane.x + (cross && pane.open ? cross.x : 0);
      return { id: cross?.id ?? `${into.stack.name}.${pane.layer}.cross`, y, d: `M${rail} ${y} H${end - 3}` };
    });
    const ends = taps.map((tap) => tap.y);
    const low = Math.max(...ends);
    const high = Math.min(...ends);
    const turn = start.top;
    const d =
      `M${start.x} ${start.top + 8} V${turn + 8} Q${start.x} ${turn} ${start.x + 8} ${turn} H${rail}` +
      ` M${rail} ${Math.max(low, turn)} V${Math.min(high, turn)}`;
    memory = { d, rail, taps };
  }
  const last = columns[columns.length - 1];
  return { width: last.x + last.w, height, columns, memory };
}

/** The head above both towers, which compares their outputs. */
function joinTowers(columns: Column[], sizes: Sizes): void {
  const last = columns.at(-1)!;
  const w = last.x + last.w;
  const y = Math.min(...columns.map((one) => one.stream.top)) - 20 - HEAD;
  for (const { stream, lines, y: bottom } of columns)
    lines.push({ d: `M${stream.x} ${stream.top + 4 - bottom} V${y + HEAD + 1 - bottom}`, role: 'branch', id: 'head' });
  last.stops.push({ id: 'head', part: 'head', x: 10, y, w: w - 20, h: HEAD, mini: false });
  last.answer = { x: (w - last.w) / 2, y: y - ANSWER_GAP + 8 - sizes.answer, w: last.w, h: sizes.answer };
}

/** Move a column down by y. */
function shift(one: Column, y: number): void {
  one.y += y;
  one.tokens.y += y;
  if (one.answer) one.answer.y += y;
  one.stream.top += y;
  one.stream.bottom += y;
  for (const stop of one.stops) stop.y += y;
  for (const pane of one.panes) pane.y += y;
}
