// Ablates every head in turn and ranks them by the change of the output.

import { session } from '../lib/session.svelte';
import type { AblationOptions } from '../lib/source';
import { Steps } from '../lib/steps.svelte';
import type { HeadAblation, TraceInfo } from '../lib/types';

export interface RankedHead {
  attention: string;
  head: number;
  effect: number; // the largest at any position, if the model predicts probabilities
  mean: number;
  peak: HeadAblation['peaks'][number];
}

const SHOWN = 10;

/** The heads with the largest effects, best first. */
export function rankHeads(ablations: HeadAblation[], count = SHOWN): RankedHead[] {
  return ablations
    .flatMap(({ attention, effects, peaks }) =>
      effects.map((mean, head) => {
        const peak = peaks[head];
        return { attention, head, mean, peak, effect: peak?.effect ?? mean };
      }),
    )
    .sort((a, b) => b.effect - a.effect)
    .slice(0, count);
}

/** Create it while a component is set up. */
export class HeadRanking {
  effects = $state.raw(new Map<string, number>());
  best = $state.raw<RankedHead[]>([]);
  measure = $state<HeadAblation['measure']>('kl');
  steps = new Steps();

  forget(): void {
    this.steps.stop();
    this.effects = new Map();
    this.best = [];
  }

  async run(trace: TraceInfo, options: AblationOptions = {}): Promise<void> {
    this.forget();
    const ablations: HeadAblation[] = [];
    await this.steps.run(
      trace.attentions.map(
        ({ name }) =>
          () =>
            session.source.ablation(trace.id, name, options),
      ),
      (ablation) => {
        ablations.push(ablation);
        this.measure = ablation.measure;
        const all = rankHeads(ablations, Infinity);
        this.effects = new Map(all.map((one) => [`${one.attention} ${one.head}`, one.effect]));
        this.best = all.slice(0, SHOWN);
      },
    );
  }
}
