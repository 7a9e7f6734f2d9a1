// Images and series are too large for the URL, which contains a name for them instead. They are kept in the session
// storage.

import { router } from '../lib/router.svelte';
import { storedInputs, type StoredInput } from '../lib/inputStore';
import { load, save } from '../lib/storage';
import { session } from '../lib/session.svelte';

export type Suffix = '' | '_b';
const STORE = 'given ';
const NO_PROMPT = { points: null, box: null, query: null, cell: null, n: null }; // places in another image

/** A hash of the input as its name. */
function named(text: string): string {
  let hash = 0x811c9dc5; // FNV-1a
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 0x01000193);
  return (hash >>> 0).toString(36);
}

/** Have the model read this. params: further changes of the URL. */
export function storeInput(input: StoredInput, suffix: Suffix = '', params: Record<string, string> = {}): void {
  const text = JSON.stringify(input);
  const name = named(text);
  storedInputs.set(name, input);
  save(STORE + name, text, 'sessionStorage');
  router.go({ params: { [`held${suffix}`]: name, [`out${suffix}`]: null, ...NO_PROMPT, ...params } });
  session.turn++; // also where it is the same as before
}

/** Back to the model's own example. */
export function useExample(suffix: Suffix = ''): void {
  router.go({ params: { [`held${suffix}`]: suffix ? 'example' : null, [`out${suffix}`]: null, ...NO_PROMPT } });
  session.turn++;
}

/** Take up again what the address names after a reload. */
export function restoreInput(suffix: Suffix = ''): void {
  const name = router.params[`held${suffix}`];
  if (name === undefined || storedInputs.has(name)) return;
  const text = load(STORE + name, 'sessionStorage');
  if (text === null) return;
  storedInputs.set(name, JSON.parse(text) as StoredInput);
  void session.read();
}
