// Ablates every head in turn and ranks them by the change of the output.

import { describe, type Problem } from '../lib/errors';
import { session } from '../lib/session.svelte';
import type { HeadAblation, TraceInfo } from '../lib/types';

export interface RankedHead {
  attention: string;
  head: number;
  effect: number;
}

const SHOWN = 10;

/** The heads with the largest effects, best first. */
export function rankHeads(ablations: HeadAblation[], count = SHOWN): RankedHead[] {
  return ablations
    .flatMap(({ attention, effects }) => effects.map((effect, head) => ({ attention, head, effect })))
    .sort((a, b) => b.effect - a.effect)
    .slice(0, count);
}

export class HeadRanking {
  effects = $state.raw(new Map<string, number>());
  best = $state.raw<RankedHead[]>([]);
  running = $state(false);
  done = $state(0); // attention layers
  total = $state(0);
  measure = $state<HeadAblation['measure']>('kl');
  problem = $state.raw<Problem | null>(null);
  #turn = 0;

  stop(): void {
    this.#turn++;
    this.running = false;
  }

  forget(): void {
    this.stop();
    this.effects = new Map();
    this.best = [];
    this.problem = null;
  }

  async run(trace: TraceInfo): Promise<void> {
    this.forget();
    const turn = this.#turn;
    this.total = trace.attentions.length;
    this.done = 0;
    this.running = true;
    try {
      const ablations: HeadAblation[] = [];
      for (const { name } of trace.attentions) {
        const ablation = await session.source.ablation(trace.id, name);
        if (turn !== this.#turn) return;
        ablations.push(ablation);
        this.measure = ablation.measure;
        this.done = ablations.length;
        const effects = new Map(this.effects);
        ablation.effects.forEach((effect, head) => effects.set(`${name} ${head}`, effect));
        this.effects = effects;
        this.best = rankHeads(ablations);
      }
    } catch (error) {
      if (turn === this.#turn) this.problem = describe(error);
    } finally {
      if (turn === this.#turn) this.running = false;
    }
  }
}
