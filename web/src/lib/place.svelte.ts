// Where the reader is, as the address says it: every view has its URL, and going back is the browser's own.
//
// #/MODEL/VIEW?in=A sentence&at=decoder.3.cross&head=2 ... Views keep their own words in the query through `word`.

export const VIEWS = ['model', 'heads', 'decoding', 'change', 'learning'] as const;
export type View = (typeof VIEWS)[number];

/** What an address written by hand may spell wrong stands as it is. */
function plain(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function read(hash: string): { model: string; view: View; words: Record<string, string> } {
  const [path, search] = hash.replace(/^#\/?/, '').split('?');
  const [model = '', view = 'model'] = path.split('/').map(plain);
  return {
    model,
    view: (VIEWS as readonly string[]).includes(view) ? (view as View) : 'model',
    words: Object.fromEntries(new URLSearchParams(search ?? '')),
  };
}

const WRITTEN_AFTER = 100; // ms

class Place {
  model = $state('');
  view = $state<View>('model');
  words = $state<Record<string, string>>({});

  constructor() {
    this.#take(location.hash);
    addEventListener('hashchange', () => {
      clearTimeout(this.#late);
      this.#late = undefined;
      this.#take(location.hash);
    });
  }

  #take(hash: string): void {
    const { model, view, words } = read(hash);
    if (model !== this.model) this.model = model;
    if (view !== this.view) this.view = view;
    // Word by word, so that only those who read a word that changed look again.
    for (const name of Object.keys(this.words)) if (!Object.hasOwn(words, name)) delete this.words[name];
    for (const [name, value] of Object.entries(words)) if (this.words[name] !== value) this.words[name] = value;
  }

  /** A word of the address, or what it is when the address does not say. */
  word(name: string, otherwise = ''): string {
    return this.words[name] ?? otherwise;
  }

  number(name: string, otherwise: number): number {
    const n = Number(this.words[name] ?? NaN);
    return Number.isFinite(n) ? n : otherwise;
  }

  /** The address of a place that differs from this one in these words; null takes a word out. */
  href(change: { model?: string; view?: View; words?: Record<string, string | number | null> }): string {
    const words = { ...this.words };
    for (const [name, value] of Object.entries(change.words ?? {})) {
      if (value === null) delete words[name];
      else words[name] = String(value);
    }
    const search = new URLSearchParams(words).toString();
    const path = [change.model ?? this.model, change.view ?? this.view].map(encodeURIComponent).join('/');
    return `#/${path}${search ? `?${search}` : ''}`;
  }

  /** Go there. `step` true leaves the present place in the history. */
  go(change: { model?: string; view?: View; words?: Record<string, string | number | null> }, step = true): void {
    const here = this.href({});
    const href = this.href(change);
    if (href === here) return;
    if (this.#late !== undefined) {
      clearTimeout(this.#late);
      this.#late = undefined;
      if (step) history.replaceState(null, '', here);
    }
    if (step) history.pushState(null, '', href);
    else {
      const from = location.hash;
      this.#late = setTimeout(() => this.#write(from), WRITTEN_AFTER);
    }
    this.#take(href);
  }

  // Browsers let the address be written only so often (Safari: a hundred times in ten seconds), and a slider moves
  // oftener: the page follows at once, the address when the hand rests.
  #late: ReturnType<typeof setTimeout> | undefined;
  #write(from: string): void {
    this.#late = undefined;
    // Another address has been asked for meanwhile, and its event is on the way: it holds.
    if (location.hash !== from) return;
    history.replaceState(null, '', this.href({}));
  }
}

export const place = new Place();
