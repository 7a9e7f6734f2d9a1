// The few browser globals that modules read when they are imported, so that their logic can be tested in Node.

const entries = new Map([['language', 'en']]);
export const location = { hash: '' };
export const pushed: string[] = [];
Object.assign(globalThis, {
  location,
  history: {
    pushState: (_state: unknown, _title: string, url: string) => {
      pushed.push(url);
      location.hash = url;
    },
    replaceState: (_state: unknown, _title: string, url: string) => (location.hash = url),
  },
  addEventListener: () => {},
  localStorage: {
    getItem: (name: string) => entries.get(name) ?? null,
    setItem: (name: string, value: string) => entries.set(name, value),
  },
});
