// The browser's storage, where there is one: a page inside a notebook has none.

type Place = 'localStorage' | 'sessionStorage';

export function load(name: string, place: Place = 'localStorage'): string | null {
  try {
    return globalThis[place].getItem(name);
  } catch {
    return null;
  }
}

/** Keep a text; without storage, or without room, it is forgotten when the page is left. */
export function save(name: string, text: string, place: Place = 'localStorage'): void {
  try {
    globalThis[place].setItem(name, text);
  } catch {
    // not allowed, or no room
  }
}
