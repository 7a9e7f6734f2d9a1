// Converts a figure of the page to SVG: boxes, borders, text line by line, canvases and inline SVG.

import { fontFaces } from './svgFonts';
import { toSvgGradient, toSvgColor } from './svgColor';
import { inlineSvg, stripControlCharacters } from './svgInline';

const MARGIN = 14;

interface Frame {
  left: number; // page coordinates of the origin
  top: number;
  out: string[];
  right: number; // extent of the content
  bottom: number;
  fonts: Set<string>;
  ids: number;
}

const escapeXml = (text: string): string =>
  stripControlCharacters(text).replace(
    /[&<>"]/g,
    (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]!,
  );
const n = (x: number): string => String(Math.round(x * 100) / 100);

/** A figure as an SVG document. */
export async function toSvg(view: HTMLElement): Promise<{ text: string; width: number; height: number }> {
  const restore = expandScrolling(view);
  const box = view.getBoundingClientRect();
  const frame: Frame = {
    left: box.left - MARGIN,
    top: box.top - MARGIN,
    out: [],
    right: 0,
    bottom: 0,
    fonts: new Set(),
    ids: 0,
  };
  try {
    drawElement(view, frame);
  } finally {
    restore();
  }
  const width = Math.ceil(frame.right + MARGIN);
  const height = Math.ceil(frame.bottom + MARGIN);
  const ground = toSvgColor(getComputedStyle(document.documentElement).getPropertyValue('--panel').trim() || '#fff');
  const faces = await fontFaces(frame.fonts);
  const style = faces ? `<style>${faces}</style>` : '';
  const text =
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `${style}<rect width="${width}" height="${height}" fill="${ground}"/>${frame.out.join('')}</svg>`;
  return { text, width, height };
}

/** Show scrolling content in full while it is measured; returns a function that restores it. */
function expandScrolling(view: HTMLElement): () => void {
  const changed: [HTMLElement, string][] = [];
  for (const element of [view, ...view.querySelectorAll<HTMLElement>('*')]) {
    if (!(element instanceof HTMLElement) || element instanceof HTMLTextAreaElement) continue;
    const { overflowX, overflowY } = getComputedStyle(element);
    if (!/auto|scroll/.test(overflowX + overflowY)) continue;
    changed.push([element, element.style.cssText]);
    element.style.cssText += ';overflow:visible;max-height:none;transition:none';
  }
  return () => changed.forEach(([element, css]) => (element.style.cssText = css));
}

function extend(frame: Frame, box: { right: number; bottom: number }): void {
  frame.right = Math.max(frame.right, box.right - frame.left);
  frame.bottom = Math.max(frame.bottom, box.bottom - frame.top);
}

function drawElement(element: Element, frame: Frame): void {
  const style = getComputedStyle(element);
  if (style.display === 'none' || style.opacity === '0') return;
  if (style.display === 'contents') return drawChildren(element, frame, style);
  if (style.transform !== 'none' && element instanceof HTMLElement)
    return drawTransformed(element, style.transform, style.transformOrigin, frame);
  const box = element.getBoundingClientRect();
  // Text for screen readers is in a box of one pixel.
  if (
    (style.position === 'absolute' || style.position === 'fixed') &&
    box.width <= 1.5 &&
    box.height <= 1.5 &&
    style.overflow !== 'visible'
  )
    return;
  const faint = style.opacity !== '1';
  if (faint) frame.out.push(`<g opacity="${style.opacity}">`);
  if (style.visibility !== 'hidden') {
    if (element instanceof SVGSVGElement) {
      frame.out.push(
        inlineSvg(element, box.left - frame.left, box.top - frame.top, box.width, box.height, frame.fonts),
      );
      if (box.width > 0) extend(frame, box);
    } else {
      drawBox(style, box, frame);
      if (element instanceof HTMLCanvasElement || element instanceof HTMLImageElement)
        drawPicture(element, style, box, frame);
      else if (
        element instanceof HTMLInputElement ||
        element instanceof HTMLSelectElement ||
        element instanceof HTMLTextAreaElement
      )
        drawControl(element, style, box, frame);
    }
  }
  const leaf = element instanceof SVGElement || /^(CANVAS|IMG|INPUT|SELECT|TEXTAREA|MATH)$/i.test(element.tagName);
  if (!leaf) {
    const cut =
      style.overflow !== 'visible' &&
      (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1);
    if (cut) {
      const id = `cut${frame.ids++}`;
      frame.out.push(`<clipPath id="${id}">${rect(box, frame)}</clipPath><g clip-path="url(#${id})">`);
    }
    drawChildren(element, frame, style);
    if (cut) frame.out.push('</g>');
  }
  if (faint) frame.out.push('</g>');
}

function drawChildren(element: Element, frame: Frame, style: CSSStyleDeclaration): void {
  for (const child of element.childNodes) {
    if (child instanceof Text) drawText(child, style, frame);
    else if (child instanceof Element) drawElement(child, frame);
  }
}

/** A transformed element: drawn without its transform, inside a group with it. */
function drawTransformed(element: HTMLElement, transform: string, origin: string, frame: Frame): void {
  const css = element.style.cssText;
  element.style.cssText += ';transform:none;transition:none;animation:none';
  const box = element.getBoundingClientRect();
  const [ox, oy] = origin.split(' ').map(parseFloat);
  const x = box.left - frame.left + ox;
  const y = box.top - frame.top + oy;
  const matrix = new DOMMatrix(transform);
  frame.out.push(
    `<g transform="translate(${n(x)} ${n(y)}) matrix(${[matrix.a, matrix.b, matrix.c, matrix.d, matrix.e, matrix.f].map((v) => v.toFixed(5)).join(' ')}) translate(${n(-x)} ${n(-y)})">`,
  );
  const extent = { right: frame.right, bottom: frame.bottom };
  drawElement(element, frame);
  frame.out.push('</g>');
  Object.assign(frame, extent); // the extent is measured with the transform
  element.style.cssText = css;
  extend(frame, element.getBoundingClientRect());
}

const rect = (box: { left: number; top: number; width: number; height: number }, frame: Frame, more = ''): string =>
  `<rect x="${n(box.left - frame.left)}" y="${n(box.top - frame.top)}" width="${n(Math.max(0, box.width))}" height="${n(Math.max(0, box.height))}"${more}/>`;

/** Background, border and outline. */
function drawBox(style: CSSStyleDeclaration, box: DOMRect, frame: Frame): void {
  if (box.width === 0 || box.height === 0) return;
  const radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.width / 2, box.height / 2);
  const round = radius ? ` rx="${n(radius)}"` : '';
  const fill = toSvgColor(style.backgroundColor);
  if (fill !== 'none') {
    frame.out.push(rect(box, frame, ` fill="${fill}"${round}`));
    extend(frame, box);
  }
  const fading = toSvgGradient(style.backgroundImage, `fade${frame.ids++}`);
  if (fading) {
    frame.out.push(fading.definition, rect(box, frame, ` fill="url(#${fading.id})"${round}`));
    extend(frame, box);
  }
  const sides = (['Top', 'Right', 'Bottom', 'Left'] as const).map((side) => ({
    side,
    width: style[`border${side}Style`] === 'none' ? 0 : parseFloat(style[`border${side}Width`]),
    color: toSvgColor(style[`border${side}Color`]),
    dashed: style[`border${side}Style`] === 'dashed' || style[`border${side}Style`] === 'dotted',
  }));
  const [first] = sides;
  if (sides.every((one) => one.width === first.width && one.color === first.color)) {
    if (first.width > 0 && first.color !== 'none')
      drawBorder(box, first.width, -first.width / 2, radius, first.color, first.dashed, frame);
  } else {
    for (const { side, width, color, dashed } of sides) {
      if (width === 0 || color === 'none') continue;
      const across = side === 'Top' || side === 'Bottom';
      const x = (side === 'Right' ? box.right - width / 2 : box.left + (across ? 0 : width / 2)) - frame.left;
      const y = (side === 'Bottom' ? box.bottom - width / 2 : box.top + (across ? width / 2 : 0)) - frame.top;
      frame.out.push(
        `<path d="M${n(x)} ${n(y)}${across ? `h${n(box.width)}` : `v${n(box.height)}`}" stroke="${color}" stroke-width="${n(width)}"${dashed ? ' stroke-dasharray="3 3"' : ''}/>`,
      );
      extend(frame, box);
    }
  }
  const outline = style.outlineStyle === 'none' || style.outlineStyle === 'auto' ? 0 : parseFloat(style.outlineWidth);
  if (outline > 0)
    drawBorder(
      box,
      outline,
      parseFloat(style.outlineOffset) + outline / 2,
      radius,
      toSvgColor(style.outlineColor),
      false,
      frame,
    );
}

function drawBorder(
  box: DOMRect,
  width: number,
  grow: number,
  radius: number,
  color: string,
  dashed: boolean,
  frame: Frame,
): void {
  const grown = {
    left: box.left - grow,
    top: box.top - grow,
    width: box.width + 2 * grow,
    height: box.height + 2 * grow,
  };
  frame.out.push(
    rect(
      grown,
      frame,
      ` fill="none" stroke="${color}" stroke-width="${n(width)}"${radius ? ` rx="${n(Math.max(0, radius + grow))}"` : ''}${dashed ? ' stroke-dasharray="3 3"' : ''}`,
    ),
  );
  extend(frame, { right: grown.left + grown.width, bottom: grown.top + grown.height });
}

function drawPicture(
  element: HTMLCanvasElement | HTMLImageElement,
  style: CSSStyleDeclaration,
  box: DOMRect,
  frame: Frame,
): void {
  let canvas = element as HTMLCanvasElement;
  if (element instanceof HTMLImageElement || style.filter !== 'none') {
    canvas = document.createElement('canvas');
    canvas.width = element instanceof HTMLImageElement ? element.naturalWidth : element.width;
    canvas.height = element instanceof HTMLImageElement ? element.naturalHeight : element.height;
    const context = canvas.getContext('2d')!;
    context.filter = style.filter;
    if (canvas.width && canvas.height) context.drawImage(element, 0, 0);
  }
  if (!canvas.width || !canvas.height || !box.width || !box.height) return;
  const sharp = style.imageRendering === 'pixelated' || style.imageRendering === 'crisp-edges';
  frame.out.push(
    `<image x="${n(box.left - frame.left)}" y="${n(box.top - frame.top)}" width="${n(box.width)}" height="${n(box.height)}" preserveAspectRatio="none"` +
      `${sharp ? ' image-rendering="optimizeSpeed" style="image-rendering:pixelated"' : ''} href="${canvas.toDataURL('image/png')}"/>`,
  );
  extend(frame, box);
}

let measuring: CanvasRenderingContext2D | null = null;

/** The ascent and height of a font. */
function rise(style: CSSStyleDeclaration): { up: number; whole: number } {
  measuring ??= document.createElement('canvas').getContext('2d')!;
  measuring.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = measuring.measureText('x');
  return { up, whole: up + down };
}

function set(
  text: string,
  left: number,
  top: number,
  width: number,
  height: number,
  style: CSSStyleDeclaration,
  frame: Frame,
): void {
  const { up, whole } = rise(style);
  const shown = style.textTransform === 'uppercase' ? text.toUpperCase() : text;
  const more = [
    style.fontWeight !== '400' ? ` font-weight="${style.fontWeight}"` : '',
    style.fontStyle !== 'normal' ? ` font-style="${style.fontStyle}"` : '',
    style.letterSpacing !== 'normal' ? ` letter-spacing="${style.letterSpacing}"` : '',
    text.length > 1 && width > 0 ? ` textLength="${n(width)}" lengthAdjust="spacingAndGlyphs"` : '',
    style.textDecorationLine.includes('underline') ? ' text-decoration="underline"' : '',
  ].join('');
  frame.fonts.add(style.fontFamily);
  frame.out.push(
    `<text x="${n(left - frame.left)}" y="${n(top - frame.top + (height - whole) / 2 + up)}" font-family="${escapeXml(style.fontFamily).replaceAll('&quot;', "'")}" font-size="${style.fontSize}" fill="${toSvgColor(style.color)}" xml:space="preserve"${more}>${escapeXml(shown)}</text>`,
  );
  extend(frame, { right: left + width, bottom: top + height });
}

/** A text node, one element per line. */
function drawText(node: Text, style: CSSStyleDeclaration, frame: Frame): void {
  if (style.visibility === 'hidden' || parseFloat(style.fontSize) === 0) return;
  const extent = /pre|break-spaces/.test(style.whiteSpace);
  if (!extent && node.data.trim() === '') return;
  const range = document.createRange();
  const at = (from: number, to: number): DOMRect => {
    range.setStart(node, from);
    range.setEnd(node, to);
    return range.getBoundingClientRect();
  };
  // A line ends where the next character is lower.
  let from = 0;
  let line: DOMRect | null = null;
  const flush = (to: number): void => {
    const text = extent ? node.data.slice(from, to).replace(/\n/g, '') : node.data.slice(from, to).replace(/\s+/g, ' ');
    const start = extent
      ? from
      : from + (node.data.slice(from, to).length - node.data.slice(from, to).trimStart().length);
    const box = at(extent ? from : start, to);
    if (text.trim() !== '' && box.width > 0)
      set(
        extent ? text : text.trim(),
        box.left,
        box.top,
        at(start, extent ? to : start + node.data.slice(start, to).trimEnd().length).width,
        box.height,
        style,
        frame,
      );
  };
  const whole = at(0, node.data.length);
  if (whole.height < 1.6 * parseFloat(style.fontSize)) {
    flush(node.data.length);
    return;
  }
  for (let i = 0; i < node.data.length; i++) {
    const box = at(i, i + 1);
    if (box.width === 0 && box.height === 0) continue;
    if (line && box.top > line.top + line.height / 2) {
      flush(i);
      from = i;
    }
    line = box;
  }
  flush(node.data.length);
}

/** An input, select or textarea: its value and state. */
function drawControl(
  element: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement,
  style: CSSStyleDeclaration,
  box: DOMRect,
  frame: Frame,
): void {
  if (element instanceof HTMLInputElement && element.type === 'range') {
    const low = Number(element.min || 0);
    const high = Number(element.max || 100);
    const x = box.left + 8 + ((box.width - 16) * (element.valueAsNumber - low)) / (high - low || 1);
    const y = box.top + box.height / 2;
    const accent = toSvgColor(style.accentColor === 'auto' ? style.color : style.accentColor);
    frame.out.push(
      rect(
        { left: box.left, top: y - 2, width: box.width, height: 4 },
        frame,
        ` fill="${accent}" opacity="0.3" rx="2"`,
      ),
    );
    frame.out.push(`<circle cx="${n(x - frame.left)}" cy="${n(y - frame.top)}" r="7" fill="${accent}"/>`);
    return extend(frame, box);
  }
  if (element instanceof HTMLInputElement && (element.type === 'checkbox' || element.type === 'radio')) {
    const color = toSvgColor(style.accentColor === 'auto' ? style.color : style.accentColor);
    frame.out.push(
      rect(
        box,
        frame,
        ` rx="${element.type === 'radio' ? n(box.width / 2) : 3}" fill="${element.checked ? color : 'none'}" stroke="${color}"`,
      ),
    );
    return extend(frame, box);
  }
  const text = element instanceof HTMLSelectElement ? (element.selectedOptions[0]?.text ?? '') : element.value;
  const left = box.left + parseFloat(style.paddingLeft) + parseFloat(style.borderLeftWidth);
  if (text) set(text, left, box.top, 0, box.height, style, frame);
}
