// What the page says, in English and Korean. Each part of the page keeps its sentences in src/i18n/PART.ts,
// both languages side by side, so that neither can be forgotten: a key missing in one is a type error.

export type Language = 'en' | 'ko';
export type Words = Record<string, { en: string; ko: string }>;

const files = import.meta.glob<{ default: Words }>('../i18n/*.ts', { eager: true });
const said: Words = Object.assign({}, ...Object.values(files).map((file) => file.default));

function first(): Language {
  const kept = localStorage.getItem('language');
  if (kept === 'en' || kept === 'ko') return kept;
  return navigator.languages.some((l) => l.toLowerCase().startsWith('ko')) ? 'ko' : 'en';
}

class Reader {
  language = $state<Language>(first());

  choose(language: Language): void {
    this.language = language;
    localStorage.setItem('language', language);
  }
}

export const reader = new Reader();

/** A sentence in the reader's language, `{name}` filled in. */
export function t(key: string, fill: Record<string, string | number> = {}): string {
  const both = said[key];
  if (!both) throw new Error(`no words for '${key}'`);
  return both[reader.language].replace(/\{(\w+)\}/g, (_, name: string) => String(fill[name] ?? ''));
}

/** Whether there are words under this key: for names that the server gives. */
export const has = (key: string): boolean => key in said;
