// Language names in the language of the page.

import { has, lookup, locale } from './i18n.svelte';

/** The name of a language; a code that has none stays a code. A variant that browsers do not know (`ko-bible`),
 * which they would shout, is called what our words call it, else stands as it is written. */
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
