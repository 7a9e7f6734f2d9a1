// Embeds the fonts of formulas in an exported SVG.

const requests = new Map<string, Promise<string>>();

async function toDataUrl(address: string): Promise<string> {
  const bytes = new Uint8Array(await (await fetch(address)).arrayBuffer());
  let text = '';
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return `data:font/woff2;base64,${btoa(text)}`;
}

/** The @font-face rules of those families that the page ships. */
export async function fontFaces(families: Set<string>): Promise<string> {
  const wanted = new Set(
    [...families].flatMap((list) => list.split(',').map((one) => one.trim().replace(/["']/g, ''))),
  );
  const faces: Promise<string>[] = [];
  for (const sheet of document.styleSheets) {
    let rules: CSSRuleList;
    try {
      rules = sheet.cssRules;
    } catch {
      continue; // a foreign style sheet
    }
    for (const rule of rules) {
      if (!(rule instanceof CSSFontFaceRule)) continue;
      const family = rule.style.getPropertyValue('font-family').replace(/["']/g, '');
      const source = rule.style.getPropertyValue('src').match(/url\(["']?([^"')]+)["']?\)/)?.[1];
      if (!wanted.has(family) || !source) continue;
      const weight = rule.style.getPropertyValue('font-weight') || '400';
      const slant = rule.style.getPropertyValue('font-style') || 'normal';
      const address = new URL(source, sheet.href ?? document.baseURI).href;
      if (
        ![...document.fonts].some(
          (face) =>
            face.family.replace(/["']/g, '') === family &&
            face.weight === weight &&
            face.style === slant &&
            face.status === 'loaded',
        )
      )
        continue;
      if (!requests.has(address)) requests.set(address, toDataUrl(address));
      faces.push(
        requests.get(address)!.then(
          (data) => `@font-face{font-family:'${family}';font-weight:${weight};font-style:${slant};src:url(${data})}`,
          () => '',
        ),
      );
    }
  }
  return (await Promise.all(faces)).join('');
}
