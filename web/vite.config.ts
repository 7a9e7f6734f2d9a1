import { svelte } from '@sveltejs/vite-plugin-svelte';
import type { Plugin } from 'vite';
import { defineConfig } from 'vitest/config';

// Of KaTeX's fonts only those of the page's formulas, and only as woff2, which every browser that can run the page reads.
const usedFonts: Plugin = {
  name: 'used-fonts',
  enforce: 'pre',
  transform(code, id) {
    if (!id.includes('katex') || !/\.css/.test(id)) return;
    return code
      .replace(/@font-face\s*\{[^}]*KaTeX_(?:Caligraphic|Fraktur|SansSerif|Script|Typewriter)[^}]*\}/g, '')
      .replace(/,url\([^)]*\)\s*format\("(?:woff|truetype)"\)/g, '');
  },
};

// Two builds of one page. The served one comes in pieces, each fetched when its view is opened, under a policy that
// allows no inline script. The single one is all in one script and one style, to be written into a file that works
// from disk (glassformer/explorer).
export default defineConfig(({ mode }) => {
  const single = mode === 'single';
  return {
    plugins: [usedFonts, svelte()],
    base: './',
    define: single ? { 'import.meta.url': 'document.baseURI' } : {}, // a plain script knows no other
    build: {
      outDir: single ? '../glassformer/explorer/page/single' : '../glassformer/explorer/page',
      emptyOutDir: true,
      copyPublicDir: !single,
      target: 'es2022',
      modulePreload: { polyfill: false },
      assetsInlineLimit: single ? Number.MAX_SAFE_INTEGER : 0,
      cssCodeSplit: !single,
      chunkSizeWarningLimit: 2000,
      // the licenses of all packages that end up in the page; KaTeX's covers its fonts
      license: single ? false : { fileName: 'THIRD_PARTY_LICENSES.md' },
      rollupOptions: single
        ? {
            input: 'src/main.ts',
            output: {
              format: 'iife',
              entryFileNames: 'page.js',
              assetFileNames: 'page[extname]',
              codeSplitting: false,
            },
          }
        : {},
    },
    test: { setupFiles: 'src/testSetup.ts' },
    server: { proxy: { '^/(models|trace|runs|v1|health)': process.env.GLASSFORMER ?? 'http://127.0.0.1:8000' } },
  };
});
