// The page's state in its URL: every view has an address, and Back works as in any page.
//
// #/MODEL/VIEW?in=A sentence&at=decoder.3.cross&head=2 ... Views keep their own parameters in the query, see `param`.

export const VIEWS = ['model', 'heads', 'decoding', 'change', 'learning'] as const;
export type View = (typeof VIEWS)[number];

/** Decode; leave invalid input unchanged. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parseHash(hash: string): { model: string; view: View; params: Record<string, string> } {
  const [path, search] = hash.replace(/^#\/?/, '').split('?');
  const [model = '', view = 'model'] = path.split('/').map(decode);
  return {
    model,
    view: (VIEWS as readonly string[]).includes(view) ? (view as View) : 'model',
    params: Object.fromEntries(new URLSearchParams(search ?? '')),
  };
}

/** Change the URL. A page inside a notebook has none of its own, so that its state lasts as long as the page. */
function write(how: 'pushState' | 'replaceState', href: string): void {
  if (location.protocol !== 'about:') history[how](null, '', href);
}

const URL_DELAY = 100; // ms

class Router {
  model = $state('');
  view = $state<View>('model');
  params = $state<Record<string, string>>({});

  constructor() {
    this.#apply(location.hash);
    addEventListener('hashchange', () => {
      clearTimeout(this.#timer);
      this.#timer = undefined;
      this.#apply(location.hash);
    });
    // Inside a notebook, a link of the page would open the notebook's URL.
    if (location.protocol === 'about:')
      addEventListener('click', (event) => {
        const href = (event.target as Element).closest?.('a')?.getAttribute('href');
        if (!href?.startsWith('#')) return;
        event.preventDefault();
        this.#apply(href);
      });
  }

  #apply(hash: string): void {
    const { model, view, params } = parseHash(hash);
    if (model !== this.model) this.model = model;
    if (view !== this.view) this.view = view;
    // One by one, so that only readers of a changed parameter are updated.
    for (const name of Object.keys(this.params)) if (!Object.hasOwn(params, name)) delete this.params[name];
    for (const [name, value] of Object.entries(params)) if (this.params[name] !== value) this.params[name] = value;
  }

  /** A parameter of the URL, or its default. */
  param(name: string, fallback = ''): string {
    return this.params[name] ?? fallback;
  }

  number(name: string, fallback: number): number {
    const n = Number(this.params[name] ?? NaN);
    return Number.isFinite(n) ? n : fallback;
  }

  /** A parameter that counts from 0 to `count` - 1. */
  index(name: string, count: number, fallback = 0): number {
    return Math.max(0, Math.min(count - 1, Math.trunc(this.number(name, fallback))));
  }

  /** The URL with these changes; null removes a parameter. */
  href(change: { model?: string; view?: View; params?: Record<string, string | number | null> }): string {
    const params = { ...this.params };
    for (const [name, value] of Object.entries(change.params ?? {})) {
      if (value === null) delete params[name];
      else params[name] = String(value);
    }
    const search = new URLSearchParams(params).toString();
    const path = [change.model ?? this.model, change.view ?? this.view].map(encodeURIComponent).join('/');
    return `#/${path}${search ? `?${search}` : ''}`;
  }

  /** Open an address in place of the current one. */
  open(href: string): void {
    write('replaceState', href);
    this.#apply(href);
  }

  /** Navigate. With `step` the current URL stays in the history. */
  go(change: { model?: string; view?: View; params?: Record<string, string | number | null> }, step = true): void {
    const current = this.href({});
    const href = this.href(change);
    if (href === current) return;
    if (this.#timer !== undefined) {
      clearTimeout(this.#timer);
      this.#timer = undefined;
      if (step) write('replaceState', current);
    }
    if (step) write('pushState', href);
    else {
      const from = location.hash;
      this.#timer = setTimeout(() => this.#write(from), URL_DELAY);
    }
    this.#apply(href);
  }

  /** Change parameters in place, without a step in the history. */
  set(params: Record<string, string | number | null>): void {
    this.go({ params }, false);
  }

  // Browsers limit how often the URL may change (Safari: 100 times in 10 seconds), and a slider moves more often: the
  // page follows at once, the URL when the slider rests.
  #timer: ReturnType<typeof setTimeout> | undefined;
  #write(from: string): void {
    this.#timer = undefined;
    // The user navigated in the meantime; that URL wins.
    if (location.hash !== from) return;
    write('replaceState', this.href({}));
  }
}

export const router = new Router();
