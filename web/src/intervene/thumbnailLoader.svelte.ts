// Loads the thumbnails of all heads, one attention layer after another.

import { session, type Tensor } from '../lib';
import type { TraceInfo } from '../lib/types';

export class ThumbnailLoader {
  #of = $state.raw(new Map<string, Tensor>());

  /** The thumbnail of a head; null until it is loaded. */
  of(attention: string, head: number): Tensor | null {
    return this.#of.get(attention)?.of(head) ?? null;
  }

  /** Load the thumbnails of a trace; returns a function that stops it. */
  bring(trace: TraceInfo): () => void {
    let wanted = true;
    this.#of = new Map();
    void (async () => {
      for (const { name } of trace.attentions) {
        if (!wanted) return;
        try {
          const pictures = await session.source.tensor(trace.id, `${name}.thumbnails`);
          if (wanted) this.#of = new Map(this.#of).set(name, pictures);
        } catch {
          return; // the switches work without thumbnails
        }
      }
    })();
    return () => (wanted = false);
  }
}
