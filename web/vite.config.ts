import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// The page is served under a strict content policy: no inline script, nothing from elsewhere.
export default defineConfig({
  plugins: [svelte()],
  base: './',
  build: {
    outDir: '../glassformer/explorer/page',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 800,
  },
  server: { proxy: { '^/(models|trace|runs|v1|health)': process.env.GLASSFORMER ?? 'http://127.0.0.1:8000' } },
});
