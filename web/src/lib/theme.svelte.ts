// Light or dark theme: the system's until the user chooses.

import { load, save } from './storage';

export type Theme = 'light' | 'dark';
const system = matchMedia('(prefers-color-scheme: dark)');

class Appearance {
  #chosen = $state<Theme | null>(load('theme') as Theme | null);
  #dark = $state(system.matches);
  theme: Theme = $derived(this.#chosen ?? (this.#dark ? 'dark' : 'light'));

  constructor() {
    system.addEventListener('change', (event) => (this.#dark = event.matches));
  }

  choose(theme: Theme): void {
    this.#chosen = theme;
    save('theme', theme);
  }
}

export const appearance = new Appearance();
