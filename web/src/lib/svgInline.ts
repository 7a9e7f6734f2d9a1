// Copies an SVG element with its computed styles as attributes, so that it needs no style sheet.

import { toSvgColor } from './svgColor';

/** The styles to copy, and their defaults. */
const STYLES: Record<string, string> = {
  fill: 'rgb(0, 0, 0)',
  'fill-opacity': '1',
  stroke: 'none',
  'stroke-width': '1px',
  'stroke-opacity': '1',
  'stroke-dasharray': 'none',
  'stroke-linecap': 'butt',
  'stroke-linejoin': 'miter',
  opacity: '1',
  visibility: 'visible',
  'paint-order': 'normal',
  'vector-effect': 'none',
};
const TEXT_STYLES: Record<string, string> = {
  'font-family': '',
  'font-size': '',
  'font-weight': '400',
  'font-style': 'normal',
  'text-anchor': 'start',
  'dominant-baseline': 'auto',
  'letter-spacing': 'normal',
};
const DROPPED = /^(class|style|role|tabindex|data-.*|aria-.*)$/;

/** Remove characters that XML does not allow; a token may contain any. */
export const stripControlCharacters = (text: string): string =>
  text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, '');

export function inlineSvg(
  svg: SVGSVGElement,
  x: number,
  y: number,
  width: number,
  height: number,
  fonts: Set<string>,
): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  copyStyles(svg, copy, fonts);
  for (const [name, value] of Object.entries({ x, y, width, height }))
    copy.setAttribute(name, String(Math.round(value * 100) / 100));
  copy.setAttribute('overflow', getComputedStyle(svg).overflow === 'visible' ? 'visible' : 'hidden');
  return stripControlCharacters(new XMLSerializer().serializeToString(copy));
}

function copyStyles(from: Element, to: Element, fonts: Set<string>): void {
  const style = getComputedStyle(from);
  if (style.display === 'none') {
    to.remove();
    return;
  }
  for (const { name } of [...to.attributes]) if (DROPPED.test(name)) to.removeAttribute(name);
  const write = (list: Record<string, string>): void => {
    for (const [name, usual] of Object.entries(list)) {
      const value = style.getPropertyValue(name);
      if (value === usual || value === '') to.removeAttribute(name);
      else to.setAttribute(name, name === 'fill' || name === 'stroke' ? toSvgColor(value) : value.replaceAll('"', "'"));
    }
  };
  if (from instanceof SVGGraphicsElement) {
    if (from.tagName === 'g' || from.tagName === 'svg') {
      if (style.opacity !== '1') to.setAttribute('opacity', style.opacity);
    } else write(STYLES);
    if (from instanceof SVGTextContentElement) {
      write(TEXT_STYLES);
      fonts.add(style.fontFamily);
      if (style.whiteSpace.startsWith('pre')) to.setAttribute('xml:space', 'preserve');
    }
    if (from instanceof SVGImageElement && style.imageRendering === 'pixelated')
      to.setAttribute('style', 'image-rendering:pixelated');
    if (style.transform !== 'none' && !(from instanceof SVGSVGElement)) copyTransform(style, to);
  }
  const [ours, theirs] = [[...from.children], [...to.children]];
  for (let k = 0; k < ours.length; k++) copyStyles(ours[k], theirs[k], fonts);
  for (const node of [...to.childNodes]) if (node.nodeType === Node.COMMENT_NODE) node.remove();
}

/** A CSS transform as an attribute. */
function copyTransform(style: CSSStyleDeclaration, to: Element): void {
  const { a, b, c, d, e, f } = new DOMMatrix(style.transform);
  const [x, y] = style.transformOrigin.split(' ').map(parseFloat);
  const matrix = `matrix(${[a, b, c, d, e, f].map((v) => Number(v.toFixed(5))).join(' ')})`;
  to.setAttribute('transform', x || y ? `translate(${x} ${y}) ${matrix} translate(${-x} ${-y})` : matrix);
}
