// A trace embedded in the page (`glassformer explore --export`): works from disk, without a model.

import { PageError } from './errors';
import type { TensorQuery, Source } from './source';
import { KINDS, Tensor } from './tensor';
import type {
  DifferenceInfo,
  HeadAblation,
  HeadsInfo,
  LensInfo,
  ModelInfo,
  ModelsResponse,
  NextInfo,
  RunInfo,
  SearchInfo,
  RunSnapshots,
  StepInfo,
  TraceInfo,
  UnitInfo,
} from './types';

interface Kept {
  model: ModelInfo;
  trace: TraceInfo;
  heads: HeadsInfo;
  lens: LensInfo[]; // by position
  next: NextInfo[];
  search: SearchInfo | null;
  tensors: Record<string, { shape: number[]; dtype: string; data: string }>; // base64, little-endian
}

const bytes = (base64: string): Uint8Array<ArrayBuffer> => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

const refused = (): Promise<never> => Promise.reject(new PageError({ key: 'problem.static' }));

export class StaticSource implements Source {
  readonly live = false;
  #kept: Promise<Kept>;
  #tensors = new Map<string, Tensor>();

  /** packed: base64 of gzipped JSON. */
  constructor(packed: string) {
    const plain = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream('gzip'));
    this.#kept = new Response(plain).json();
  }

  async models(): Promise<ModelsResponse> {
    return { models: [(await this.#kept).model], runs: [] };
  }
  async trace(): Promise<TraceInfo> {
    return (await this.#kept).trace;
  }
  async tensor(_trace: string, name: string, asked: TensorQuery = {}): Promise<Tensor> {
    let whole = this.#tensors.get(name);
    if (!whole) {
      const kept = (await this.#kept).tensors[name];
      if (!kept || asked.minus) return refused();
      whole = new Tensor(new KINDS[kept.dtype](bytes(kept.data).buffer), kept.shape);
      this.#tensors.set(name, whole);
    }
    const part = asked.slice ? whole.slice(asked.slice) : whole;
    return asked.pool ? part.pooled(asked.pool) : part;
  }
  async heads(): Promise<HeadsInfo> {
    return (await this.#kept).heads;
  }
  ablation(): Promise<HeadAblation> {
    return refused();
  }
  async lens(_trace: string, position: number): Promise<LensInfo> {
    return (await this.#kept).lens.find((one) => one.position === position) ?? refused();
  }
  async next(_trace: string, position: number): Promise<NextInfo> {
    return (await this.#kept).next.find((one) => one.position === position) ?? refused();
  }
  sentences(): Promise<string[]> {
    return refused();
  }
  unit(): Promise<UnitInfo> {
    return refused();
  }
  difference(): Promise<DifferenceInfo> {
    return refused();
  }
  step(): Promise<StepInfo> {
    return refused();
  }
  async search(): Promise<SearchInfo> {
    return (await this.#kept).search ?? refused();
  }
  run(): Promise<RunInfo> {
    return refused();
  }
  snapshots(): Promise<RunSnapshots> {
    return refused();
  }
}
