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
  NextTokenInfo,
  RunInfo,
  SearchInfo,
  SimilarityInfo,
  RunSnapshots,
  StepInfo,
  TraceInfo,
  FeedForwardUnitInfo,
} from './types';

interface TraceData {
  model: ModelInfo;
  trace: TraceInfo;
  heads: HeadsInfo;
  lens: LensInfo[]; // by position
  next: NextTokenInfo[];
  search: SearchInfo | null;
  tensors: Record<string, { shape: number[]; dtype: string; data: string }>; // base64, little-endian
}

const bytes = (base64: string): Uint8Array<ArrayBuffer> => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));

const reject = (): Promise<never> => Promise.reject(new PageError({ key: 'problem.static' }));

export class StaticSource implements Source {
  readonly live = false;
  #data: Promise<TraceData>;
  #tensors = new Map<string, Tensor>();

  /** packed: base64 of gzipped JSON. */
  constructor(packed: string) {
    const plain = new Blob([bytes(packed)]).stream().pipeThrough(new DecompressionStream('gzip'));
    this.#data = new Response(plain).json();
  }

  async models(): Promise<ModelsResponse> {
    return { models: [(await this.#data).model], runs: [] };
  }
  async trace(): Promise<TraceInfo> {
    return (await this.#data).trace;
  }
  async tensor(_trace: string, name: string, asked: TensorQuery = {}): Promise<Tensor> {
    let whole = this.#tensors.get(name);
    if (!whole) {
      const kept = (await this.#data).tensors[name];
      if (!kept || asked.minus) return reject();
      whole = new Tensor(new KINDS[kept.dtype](bytes(kept.data).buffer), kept.shape);
      this.#tensors.set(name, whole);
    }
    const part = asked.slice ? whole.slice(asked.slice) : whole;
    return asked.pool ? part.pooled(asked.pool) : part;
  }
  async heads(): Promise<HeadsInfo> {
    return (await this.#data).heads;
  }
  ablation(): Promise<HeadAblation> {
    return reject();
  }
  async lens(_trace: string, position: number): Promise<LensInfo> {
    return (await this.#data).lens.find((one) => one.position === position) ?? reject();
  }
  async next(_trace: string, position: number): Promise<NextTokenInfo> {
    return (await this.#data).next.find((one) => one.position === position) ?? reject();
  }
  sentences(): Promise<string[]> {
    return reject();
  }
  unit(): Promise<FeedForwardUnitInfo> {
    return reject();
  }
  difference(): Promise<DifferenceInfo> {
    return reject();
  }
  step(): Promise<StepInfo> {
    return reject();
  }
  async search(): Promise<SearchInfo> {
    return (await this.#data).search ?? reject();
  }
  similarity(): Promise<SimilarityInfo> {
    return reject();
  }
  run(): Promise<RunInfo> {
    return reject();
  }
  snapshots(): Promise<RunSnapshots> {
    return reject();
  }
}
