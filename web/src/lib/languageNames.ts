// Language names in the language of the page.

import { has, lookup, locale } from './i18n.svelte';

/** The name of a language, or its code. Browsers show an unknown variant in capitals (`ko-bible`: BIBLE); it is replaced. */
export function languageName(code: string): string {
  try {
    const name = new Intl.DisplayNames([locale.language], { type: 'language' }).of(code) ?? code;
    const variant = code.split('-').at(-1) ?? '';
    return name.replace(
      `(${variant.toUpperCase()})`,
      () => `(${has(`variant.${variant}`) ? lookup(`variant.${variant}`) : variant})`,
    );
  } catch {
    return code;
  }
}
