// Colors in the notation that all SVG readers understand.

/** A computed color as #rrggbb or rgb(); 'none' if transparent. */
export function toSvgColor(color: string): string {
  if (color === 'transparent' || color === 'none' || color === '') return 'none';
  const wide = color.match(/^color\(srgb\s+([\d.e+-]+)\s+([\d.e+-]+)\s+([\d.e+-]+)(?:\s*\/\s*([\d.]+))?\)$/);
  if (wide)
    return written(
      wide.slice(1, 4).map((part) => 255 * Number(part)),
      wide[4],
    );
  const old = color.match(/^rgba?\(\s*([\d.]+)[\s,]+([\d.]+)[\s,]+([\d.]+)(?:[\s,/]+([\d.]+))?\s*\)$/);
  if (old) return written(old.slice(1, 4).map(Number), old[4]);
  return color;
}

function written(parts: number[], alpha: string | undefined): string {
  const [r, g, b] = parts.map((part) => Math.max(0, Math.min(255, Math.round(part))));
  if (alpha !== undefined && Number(alpha) === 0) return 'none';
  return alpha === undefined || Number(alpha) === 1 ? `rgb(${r},${g},${b})` : `rgba(${r},${g},${b},${alpha})`;
}

/** A computed linear-gradient as SVG; null for anything else. */
export function toSvgGradient(image: string, id: string): { id: string; definition: string } | null {
  const inside = image.match(/^linear-gradient\((.*)\)$/s)?.[1];
  if (!inside) return null;
  const parts = inside.split(/,(?![^(]*\))/).map((part) => part.trim());
  let degrees = 180;
  const turn = parts[0].match(/^(-?[\d.]+)deg$/);
  const side = parts[0].match(/^to (right|left|top|bottom)$/);
  if (turn) degrees = Number(turn[1]);
  if (side) degrees = { right: 90, left: 270, top: 0, bottom: 180 }[side[1]]!;
  if (turn || side) parts.shift();
  const stops = parts.map((part, k) => {
    const found = part.match(/^(.*?\)|\S+)\s*([\d.]+%)?/)!;
    return `<stop offset="${found[2] ?? `${(100 * k) / Math.max(1, parts.length - 1)}%`}" stop-color="${toSvgColor(found[1])}"/>`;
  });
  const angle = (degrees * Math.PI) / 180;
  const [x, y] = [Math.sin(angle) / 2, -Math.cos(angle) / 2];
  const place = `x1="${(0.5 - x).toFixed(3)}" y1="${(0.5 - y).toFixed(3)}" x2="${(0.5 + x).toFixed(3)}" y2="${(0.5 + y).toFixed(3)}"`;
  return { id, definition: `<linearGradient id="${id}" ${place}>${stops.join('')}</linearGradient>` };
}
