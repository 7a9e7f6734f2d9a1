// Every head switched off in turn, and how much the answer changes.

import { describe, type Problem } from '../lib/errors';
import { session } from '../lib/session.svelte';
import type { Outcome, TraceInfo } from '../lib/types';
import { cosine as cosineOf } from '../stages/vectorMath';
import { fixedTarget } from './fixedTarget';

export interface RankedHead {
  attention: string;
  head: number;
  effect: number;
}

const MOST = 400; // heads tried at most
const SHOWN = 10;

/**
 * What is measured: "kl" the divergence of the chances at the place that matters, "places" its mean over all places,
 * "labels" half the sum of changes of the labels' chances, "vector" one less the cosine of the vectors, "curve" the
 * mean change of the forecast, "score" the change of an answer's score.
 */
export type Measure = 'kl' | 'places' | 'labels' | 'vector' | 'curve' | 'score';

export class HeadRanking {
  effects = $state.raw(new Map<string, number>());
  best = $state.raw<RankedHead[]>([]);
  running = $state(false);
  done = $state(0);
  total = $state(0);
  all = $state(0);
  measure = $state<Measure>('kl');
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
    const mine = this.#turn;
    const heads = trace.attentions.flatMap((one) =>
      Array.from({ length: one.heads }, (_, head) => ({ attention: one.name, head })),
    );
    const tried = heads.slice(0, MOST);
    this.all = heads.length;
    this.total = tried.length;
    this.done = 0;
    this.running = true;
    try {
      const request = { ...trace.input, target: fixedTarget(trace) ?? trace.input.target, model: trace.model };
      const before = await session.source.trace(request);
      const found: RankedHead[] = [];
      for (const { attention, head } of tried) {
        const after = await session.source.trace({ ...request, changes: [{ kind: 'head_off', attention, head }] });
        if (mine !== this.#turn) return;
        const [measure, effect] = await effectOf(before, after);
        if (mine !== this.#turn) return;
        found.push({ attention, head, effect });
        this.measure = measure;
        this.done = found.length;
        this.effects = new Map(this.effects).set(`${attention} ${head}`, effect);
        this.best = found.toSorted((a, b) => b.effect - a.effect).slice(0, SHOWN);
      }
    } catch (error) {
      if (mine === this.#turn) this.problem = describe(error);
    } finally {
      if (mine === this.#turn) this.running = false;
    }
  }
}

async function effectOf(before: TraceInfo, after: TraceInfo): Promise<[Measure, number]> {
  const [a, b] = [before.outcome, after.outcome];
  if ((a.kind === 'classify' || a.kind === 'image') && 'labels' in b) return ['labels', labelsMoved(a, b)];
  if (a.kind === 'embed' && b.kind === 'embed') return ['vector', 1 - (await cosine(before, after, a.vector_name))];
  if (a.kind === 'forecast') return ['curve', await moved(before, after, a.names.forecast)];
  if (a.kind === 'answer' && b.kind === 'answer') return ['score', Math.abs(a.score - b.score)];
  const { kl, positions } = await session.source.difference(before.id, after.id);
  if (a.kind === 'translate' && positions)
    return ['places', positions.reduce((sum, one) => sum + one, 0) / positions.length];
  return ['kl', kl ?? 0];
}

type Labelled = Extract<Outcome, { kind: 'classify' | 'image' }>;

/** Half the sum of what each label gained or lost: how much of the probability moved. */
export function labelsMoved(before: Labelled, after: Labelled): number {
  const was = new Map(before.labels.map((one) => [one.label, one.probability]));
  return after.labels.reduce((sum, one) => sum + Math.abs(one.probability - (was.get(one.label) ?? 0)), 0) / 2;
}

/** The cosine of two traces' vectors. */
export async function cosine(before: TraceInfo, after: TraceInfo, name: string): Promise<number> {
  const [a, b] = await Promise.all([before, after].map((one) => session.source.tensor(one.id, name)));
  return cosineOf(a.data, b.data);
}

/** The mean absolute change of a tensor. */
export async function moved(before: TraceInfo, after: TraceInfo, name: string): Promise<number> {
  const [a, b] = await Promise.all([before, after].map((one) => session.source.tensor(one.id, name)));
  let sum = 0;
  for (let i = 0; i < a.data.length; i++) sum += Math.abs(a.data[i] - b.data[i]);
  return sum / a.data.length;
}
