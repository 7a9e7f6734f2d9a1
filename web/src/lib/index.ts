// What almost every view needs: the page's state, texts, data and formats.

export { colorOf, colorRange, colorTable, diverges, paintCells, textColor, type Hue, type Scale } from './color';
export { describe, describeView, type Problem } from './errors';
export * from './format';
export { has, locale, lookup, t } from './i18n.svelte';
export { resource } from './resource.svelte';
export { router, VIEWS, type View } from './router.svelte';
export { DRAWN, exampleOf, INPUT_PARAMS, inputOf, sentenceAt, session, type Side } from './session.svelte';
export { extent, Tensor, type Numbers } from './tensor';
export { appearance, type Theme } from './theme.svelte';
