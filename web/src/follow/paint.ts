// Draws a moment of a flow on a canvas.

import { paintCells } from '../lib/color';
import { formatPercent } from '../lib/format';
import { Tensor } from '../lib/tensor';
import type { Theme } from '../lib/theme.svelte';
import { tokenLabel } from '../components/tokenText';
import { cameraOf, chipsOf, cropOf, during, inside, ease, merged, mix, progressOf, rowsOf, unitsLeft } from './layout';
import type { Box, Plan, Row, SourceChip, Tower } from './layout';
import type { Move, Scene } from './scenes';
import { t as text } from '../lib/i18n.svelte';

const COLORS = [
  'text',
  'quiet',
  'panel',
  'line',
  'accent',
  'attention',
  'value',
  'ffn',
  'position',
  'residual',
  'output',
] as const;
type Color = (typeof COLORS)[number];
const HUES: Record<Move['kind'], Color> = {
  position: 'position',
  self: 'attention',
  cross: 'value',
  ffn: 'ffn',
  parallel: 'attention',
  norm: 'residual',
  skip: 'residual',
};

export class Painter {
  #context: CanvasRenderingContext2D;
  #colors = {} as Record<Color, string>;
  #mono = '';
  #sans = '';
  #strips = new WeakMap<Float32Array, HTMLCanvasElement>();
  #moving = document.createElement('canvas');
  #widths = new Map<string, number>();
  image: HTMLImageElement | null = null;

  constructor(
    readonly canvas: HTMLCanvasElement,
    readonly theme: Theme,
    readonly range: [number, number],
  ) {
    this.#context = canvas.getContext('2d')!;
    const style = getComputedStyle(canvas);
    for (const name of COLORS) this.#colors[name] = style.getPropertyValue(`--${name}`).trim();
    this.#mono = style.getPropertyValue('--mono');
    this.#sans = style.getPropertyValue('--sans');
  }

  measure = (words: string, font = `12px ${this.#mono}`): number => {
    const key = font + words;
    let known = this.#widths.get(key);
    if (known === undefined) {
      this.#context.font = font;
      this.#widths.set(key, (known = this.#context.measureText(words).width));
    }
    return known;
  };

  paint(plan: Plan, t: number): void {
    const ratio = Math.min(2, devicePixelRatio);
    const { canvas } = this;
    const context = this.#context;
    if (canvas.width !== Math.round(plan.width * ratio) || canvas.height !== Math.round(plan.height * ratio))
      [canvas.width, canvas.height] = [Math.round(plan.width * ratio), Math.round(plan.height * ratio)];
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, plan.width, plan.height);
    context.translate(-cameraOf(plan, t), 0);
    context.imageSmoothingEnabled = false;
    const now = Math.min(plan.scenes.length - 1, Math.floor(t));
    for (const tower of plan.towers) this.#rail(plan, tower, now, t);
    for (const tower of plan.towers) {
      const rows = rowsOf(plan, tower, t);
      this.#rows(plan, tower, rows, t);
      const active = rows.findIndex((row) => row.scene === now);
      if (active >= 0) this.#scene(plan, tower, rows, active, t - now, t);
    }
  }

  /** A line of text; `align` and baseline as in CSS. */
  #text(
    words: string,
    x: number,
    y: number,
    font: string,
    color: string,
    align: CanvasTextAlign = 'left',
    most = 1e4,
  ): void {
    const context = this.#context;
    context.font = font;
    context.fillStyle = color;
    context.textAlign = align;
    context.textBaseline = 'middle';
    let shown = words;
    while (shown.length > 1 && this.measure(shown, font) > most) shown = `${shown.slice(0, -2)}…`;
    context.fillText(shown, x, y);
  }

  /** The cells of a vector that is drawn more than once. */
  #stored(values: Float32Array): HTMLCanvasElement {
    let cells = this.#strips.get(values);
    if (!cells) this.#strips.set(values, (cells = this.#cells(document.createElement('canvas'), values)));
    return cells;
  }
  #cells(canvas: HTMLCanvasElement, values: Float32Array): HTMLCanvasElement {
    paintCells(canvas, new Tensor(values, [1, values.length]), this.theme, 'signed', this.range);
    return canvas;
  }
  #cellsAt(cells: HTMLCanvasElement, { x, y, w, h }: Box, from = 0, to = 1): void {
    const context = this.#context;
    if (w <= 0 || h <= 0 || to <= from) return;
    context.drawImage(cells, from * cells.width, 0, (to - from) * cells.width, 1, x + from * w, y, (to - from) * w, h);
    context.strokeStyle = this.#colors.line;
    context.lineWidth = 1;
    context.strokeRect(x + from * w - 0.5, y - 0.5, (to - from) * w + 1, h + 1);
  }

  /** The tokens or the image below a tower, with the residual lines that rise from them. */
  #rail(plan: Plan, tower: Tower, now: number, t: number): void {
    const { sequence, followed, x, y, room, picture } = tower.rail;
    const context = this.#context;
    if (picture && this.image) {
      context.imageSmoothingEnabled = picture.w < this.image.naturalWidth;
      context.drawImage(this.image, picture.x, picture.y, picture.w, picture.h);
      context.imageSmoothingEnabled = false;
    }
    const tokens = sequence.tokens;
    for (let n = 0; n < tokens.length; n++) {
      const own = n === followed;
      if (!own && (picture || tokens.length > 80)) continue;
      context.strokeStyle = own ? this.#colors.residual : this.#colors.line;
      context.globalAlpha = own ? 0.55 : 0.6;
      context.lineWidth = own ? 2 : 1;
      context.beginPath();
      context.moveTo(x(n), own ? this.#foot(plan, tower) : y + 4);
      context.lineTo(x(n), 8);
      context.stroke();
      context.globalAlpha = 1;
      if (picture) continue;
      const label = tokenLabel(tokens[n].piece);
      if (own || room > 0)
        this.#chip(
          label,
          x(n),
          y + (own || room === Infinity ? 16 : n % 2 ? 34 : 16),
          own ? 'accent' : null,
          own ? 120 : room,
        );
      else {
        context.fillStyle = this.#colors.quiet;
        context.fillRect(x(n) - 1, y + 14, 2, 2);
      }
    }
    if (!picture) return;
    if (tokens[followed].box) this.#patch(plan, tower, followed, this.#colors.accent);
    else this.#chip(tokenLabel(tokens[followed].piece), x(followed), this.#foot(plan, tower) + 8, 'accent', 90);
    const scene = plan.scenes[now];
    const own = scene.pass.sequence === sequence.name;
    for (const move of scene.moves)
      if (own !== (move.kind === 'cross'))
        for (const source of move.attention?.sources ?? [])
          if (tokens[source.position]?.box) this.#patch(plan, tower, source.position, this.#colors[HUES[move.kind]]);
    const box = own ? scene.reading?.box : null; // between those of two layers
    if (!box) return;
    const before = plan.scenes[now - 1]?.reading?.box ?? box;
    const [left, top, right, bottom] = box.map((to, i) => mix(before[i], to, progressOf(scene, t - now).read));
    const found = inside(picture, { x: left, y: top, w: right - left, h: bottom - top });
    context.lineWidth = 3;
    context.strokeStyle = this.#colors.output;
    context.strokeRect(found.x, found.y, found.w, found.h);
  }

  /** Where the residual line of the followed token begins. */
  #foot(plan: Plan, { rail: { sequence, followed, picture, y } }: Tower): number {
    if (!picture) return y + 6;
    const crop = cropOf(sequence.tokens[followed], plan.extent);
    return picture.y + picture.h * (crop ? crop.y + crop.h / 2 : 0.5);
  }
  #patch(plan: Plan, { rail }: Tower, n: number, color: string): void {
    const { x, y, w, h } = inside(rail.picture!, cropOf(rail.sequence.tokens[n], plan.extent)!);
    this.#context.strokeStyle = color;
    this.#context.lineWidth = 2;
    this.#context.strokeRect(x, y, w, h);
  }
  #crop({ x, y, w, h }: Box, at: [number, number], color: Color): void {
    const [wide, high] = [this.image!.naturalWidth, this.image!.naturalHeight];
    const box = [at[0] - 14, at[1] - 14, 28, 28] as const;
    this.#context.drawImage(this.image!, x * wide, y * high, w * wide, h * high, ...box);
    this.#context.strokeStyle = this.#colors[color];
    this.#context.lineWidth = 2;
    this.#context.strokeRect(...box);
  }

  #chip(label: string, x: number, y: number, color: Color | null, most: number): void {
    const context = this.#context;
    const font = `${color ? 600 : 400} 12px ${this.#mono}`;
    const w = Math.min(most, this.measure(label, font)) + 10;
    if (color) {
      context.fillStyle = this.#colors.panel;
      context.strokeStyle = this.#colors[color];
      context.lineWidth = 1.5;
      context.beginPath();
      context.roundRect(x - w / 2, y - 10, w, 20, 6);
      context.fill();
      context.stroke();
    }
    this.#text(label, x, y, font, this.#colors[color ? 'text' : 'quiet'], 'center', most);
  }

  /** The rows of a tower: what the strip left behind, and the words read. */
  #rows(plan: Plan, tower: Tower, rows: Row[], t: number): void {
    const final = plan.scenes.at(-1)!.reading?.predictions[0]?.text;
    for (const row of rows) {
      const scene = plan.scenes[row.scene];
      const past = row.scene < Math.floor(t) && row.scene < plan.scenes.length - 1;
      const size = tower.strip.w < 300 ? 10 : 11;
      const middle = row.strip.y + row.strip.h / 2;
      this.#text(
        sceneLabel(scene, tower.strip.w < 300),
        tower.label,
        middle,
        `${size}px ${this.#sans}`,
        this.#colors[row.open > 0.5 ? 'text' : 'quiet'],
      );
      if (past) this.#cellsAt(this.#stored(scene.moves.at(-1)!.to), row.strip);
      const word = scene.reading?.predictions[0];
      if (!word || scene.kind === 'output') continue;
      const shown = past ? 1 : row.scene === Math.floor(t) ? progressOf(scene, t - row.scene).read : 0;
      if (!shown) continue;
      this.#context.globalAlpha = shown;
      const [label, strong] = [tokenLabel(word.text), word.text === final];
      const room = (tower.strip.w < 300 ? 84 : 146) - 48;
      this.#text(
        label,
        tower.word,
        middle,
        `${strong ? 700 : 500} ${mix(13, 15, row.open)}px ${this.#sans}`,
        this.#colors[strong ? 'output' : 'text'],
        'left',
        room,
      );
      const w = Math.min(room, this.measure(label, `${strong ? 700 : 500} 15px ${this.#sans}`)) + 6;
      this.#text(
        formatPercent(word.probability ?? 0),
        tower.word + w,
        middle + 1,
        `11px ${this.#sans}`,
        this.#colors.quiet,
      );
      this.#context.globalAlpha = 1;
    }
  }

  #scene(plan: Plan, tower: Tower, rows: Row[], at: number, u: number, t: number): void {
    const row = rows[at];
    const scene = plan.scenes[row.scene];
    const { lift, moves, read } = progressOf(scene, u);
    const x = tower.rail.x(tower.rail.followed);
    const from = at > 0 ? rows[at - 1].strip : { ...row.strip, y: tower.rail.y, h: 8 };
    const strip = { ...row.strip, y: mix(from.y, row.strip.y, lift), h: mix(from.h, row.strip.h, lift) };
    const chips = chipsOf(plan, tower, row, t);
    const current = Math.max(
      0,
      moves.findLastIndex((share) => share > 0),
    );
    for (const [n, move] of scene.moves.entries()) {
      const share = moves[n];
      if (share === 0) continue;
      const alpha = n === current && share < 1 ? 1 : 0.45;
      const own = chips.filter((chip) => chip.move === n);
      this.#sources(own, share, alpha, x, strip);
      if (move.units.length) this.#units(move, tower, row, share, alpha, x, strip);
    }
    this.#context.fillStyle = this.#colors.accent;
    this.#context.fillRect(x - 1.5, strip.y + strip.h, 3, Math.max(0, this.#foot(plan, tower) - strip.y - strip.h));
    // The strip, and below it what is being added
    const move = scene.moves[current];
    const done = merged(move, moves[current]);
    const still = done === 0 ? move.from : done === 1 ? move.to : null;
    const cells = still
      ? this.#stored(still)
      : this.#cells(
          this.#moving,
          move.from.map((value, i) => mix(value, move.to[i], done)),
        );
    const middle = (x - strip.x) / strip.w;
    const unrolled = scene.kind === 'start' ? during(u, 0.02, 0.16) : 1; // from its token
    this.#cellsAt(cells, strip, middle * (1 - unrolled), mix(middle, 1, unrolled));
    this.#context.fillStyle = this.#colors.accent;
    this.#context.beginPath();
    this.#context.arc(x, strip.y + strip.h + 4, 3.5, 0, 2 * Math.PI);
    this.#context.fill();
    if (move.delta && moves[current] > 0 && moves[current] < 1) {
      const open = during(moves[current], 0.34, 0.58);
      const above = chips.some((chip) => chip.move === current && chip.above);
      const box = {
        ...strip,
        y: mix(above ? strip.y - 15 : strip.y + strip.h + 16, strip.y, done),
        h: mix(9, strip.h, done),
      };
      this.#context.globalAlpha = 1 - done;
      this.#cellsAt(this.#stored(move.delta), box, middle * (1 - open), mix(middle, 1, open));
      if (open > 0.9)
        this.#text(
          '+',
          strip.x - 8,
          box.y + box.h / 2,
          `700 15px ${this.#sans}`,
          this.#colors[HUES[move.kind]],
          'center',
        );
      this.#context.globalAlpha = 1;
    }
    if (scene.kind === 'output') this.#output(tower, row, scene, read);
  }

  /** Ribbons from the tokens attended to; the width is the share of the strength. */
  #sources(chips: SourceChip[], share: number, alpha: number, x: number, strip: Box): void {
    const context = this.#context;
    const grown = ease(share / 0.4);
    let offset = -chips.reduce((sum, chip) => sum + thickness(chip), 0) / 2;
    for (const chip of chips) {
      const color = chip.crossing ? 'value' : 'attention';
      const wide = thickness(chip);
      const [fx, fy] = chip.from;
      const tx = x + offset + wide / 2;
      offset += wide;
      const landing = chip.above ? strip.y - 15 : strip.y + strip.h + 26;
      const bend = chip.above
        ? [mix(fx, tx, 0.6), fy - 4, tx, mix(fy, landing, 0.3)]
        : [fx, mix(fy, landing, 0.6), tx, mix(fy, landing, 0.4)];
      context.strokeStyle = this.#colors[color];
      context.globalAlpha = 0.55 * alpha;
      context.lineWidth = wide;
      context.beginPath();
      curve(context, [fx, fy, ...bend, tx, landing], grown);
      context.stroke();
      context.globalAlpha = alpha < 1 ? 0.8 : Math.min(1, 4 * grown);
      if (chip.crop && this.image) this.#crop(chip.crop, chip.from, color);
      else this.#chip(chip.label, fx, fy, color, 70);
    }
    context.globalAlpha = 1;
  }

  /** The feed-forward units that add most: they flash. */
  #units(move: Move, tower: Tower, row: Row, share: number, alpha: number, x: number, strip: Box): void {
    const context = this.#context;
    const most = Math.abs(move.units[0].activation) * move.units[0].norm || 1;
    const y = mix(strip.y + strip.h, row.y + row.h, 0.5);
    const left = unitsLeft(tower.strip, x);
    context.fillStyle = this.#colors.ffn;
    for (const [n, unit] of move.units.entries()) {
      const size = 5 + 11 * Math.sqrt((Math.abs(unit.activation) * unit.norm) / most);
      const flash = Math.max(0, Math.sin(Math.PI * Math.min(1, 2.2 * share - 0.08 * n)));
      context.globalAlpha = Math.min(1, alpha * (0.35 + 0.65 * flash));
      const grown = size * (1 + 0.35 * flash);
      context.beginPath();
      context.roundRect(left + 22 * n + 8 - grown / 2, y - grown / 2, grown, grown, 3);
      context.fill();
    }
    context.globalAlpha = alpha;
    this.#text(text('follow.unit', { unit: move.units[0].unit }), left, y + 17, `11px ${this.#sans}`, this.#colors.ffn);
    context.globalAlpha = 1;
  }

  /** What the head predicts, as bars. */
  #output(tower: Tower, row: Row, scene: Scene, read: number): void {
    const words = scene.reading?.predictions ?? [];
    const context = this.#context;
    context.fillStyle = this.#colors.panel;
    if (words.length)
      context.fillRect(tower.strip.x, row.strip.y + row.strip.h + 9, tower.strip.w, row.h - row.strip.h - 20);
    const high = Math.min(22, (row.h - row.strip.h - 26) / Math.max(1, words.length));
    for (const [n, word] of words.entries()) {
      const y = row.strip.y + row.strip.h + 22 + (n + 0.5) * high;
      const share = word.probability ?? 0;
      const left = tower.strip.x + 96;
      context.globalAlpha = read;
      this.#text(
        tokenLabel(word.text),
        left - 8,
        y,
        `${n ? 400 : 700} 13px ${this.#sans}`,
        this.#colors.text,
        'right',
        90,
      );
      context.fillStyle = this.#colors.output;
      context.fillRect(left, y - 6, Math.max(1, (tower.strip.w - 150) * share * read), 12);
      this.#text(
        formatPercent(share),
        left + Math.max(1, (tower.strip.w - 150) * share * read) + 6,
        y,
        `12px ${this.#sans}`,
        this.#colors.quiet,
      );
    }
    context.globalAlpha = 1;
  }
}

const thickness = (chip: SourceChip): number => Math.max(1, 30 * chip.share);

/** The first part of a cubic curve, by de Casteljau. */
function curve(context: CanvasRenderingContext2D, [ax, ay, bx, by, cx, cy, dx, dy]: number[], t: number): void {
  const [abx, aby, bcx, bcy, cdx, cdy] = [
    mix(ax, bx, t),
    mix(ay, by, t),
    mix(bx, cx, t),
    mix(by, cy, t),
    mix(cx, dx, t),
    mix(cy, dy, t),
  ];
  const [ex, ey, fx, fy] = [mix(abx, bcx, t), mix(aby, bcy, t), mix(bcx, cdx, t), mix(bcy, cdy, t)];
  context.moveTo(ax, ay);
  context.bezierCurveTo(abx, aby, ex, ey, mix(ex, fx, t), mix(ey, fy, t));
}

/** The name of a scene's row. */
export function sceneLabel(scene: Scene, short = false): string {
  if (scene.kind !== 'layers') return text(scene.kind === 'start' ? 'follow.start' : 'follow.output');
  const [from, to] = scene.layers.map((n) => n + 1);
  const range = from === to ? `${from}` : `${from}–${to}`;
  return short ? range : text('follow.layers', { range });
}
