// The page's texts in English and Korean. Each part of the page has its own file in src/i18n, with both languages side
// by side, so a missing translation is a type error; so is a misspelled key.

import { load, save } from './storage';
import decoding from '../i18n/decoding';
import draw from '../i18n/draw';
import errors from '../i18n/errors';
import follow from '../i18n/follow';
import heads from '../i18n/heads';
import intervene from '../i18n/intervene';
import learning from '../i18n/learning';
import model from '../i18n/model';
import page from '../i18n/page';
import media from '../i18n/media';
import stages from '../i18n/stages';
import stories from '../i18n/stories';
import tour from '../i18n/tour';

export type Language = 'en' | 'ko';
export type Messages = Record<string, { en: string; ko: string }>;

const messages = {
  ...decoding,
  ...draw,
  ...errors,
  ...follow,
  ...heads,
  ...intervene,
  ...learning,
  ...model,
  ...page,
  ...media,
  ...stages,
  ...stories,
  ...tour,
};
export type Key = keyof typeof messages;

function preferred(): Language {
  const stored = load('language');
  if (stored === 'en' || stored === 'ko') return stored;
  return navigator.languages.some((l) => l.toLowerCase().startsWith('ko')) ? 'ko' : 'en';
}

class Locale {
  language = $state<Language>(preferred());

  choose(language: Language): void {
    this.language = language;
    save('language', language);
  }
}

export const locale = new Locale();

/** A text in the language of the page, with `{name}` filled in. */
export function t(key: Key, fill: Record<string, string | number> = {}): string {
  return messages[key][locale.language].replace(/\{(\w+)\}/g, (_, name: string) => String(fill[name] ?? ''));
}

/** Like `t`, for a key that is built at run time. */
export function lookup(key: string, fill?: Record<string, string | number>): string {
  if (!has(key)) throw new Error(`no text for '${key}'`);
  return t(key, fill);
}

/** Whether there is a text for a key. */
export const has = (key: string): key is Key => key in messages;
