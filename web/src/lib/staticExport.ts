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
  scales: Record<string, number>; // of attention layers whose matrices are computed here, from queries and keys
  tensors: Record<string, { shape: number[]; dtype: string; data: string }>; // base64, little-endian
}

function bytes(base64: string): Uint8Array<ArrayBuffer> {
  const text = atob(base64);
  const data = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) data[i] = text.charCodeAt(i); // ten times as fast as Uint8Array.from
  return data;
}

type AttentionMatrix = 'dot' | 'scaled' | 'masked' | 'weights';
const MATRICES: readonly string[] = ['dot', 'scaled', 'masked', 'weights'] satisfies AttentionMatrix[];

/** The scores or weights (B, H, T, S) of attention without mask and bias; query heads may share key heads. */
export function attentionMatrix(q: Tensor, k: Tensor, scale: number, matrix: AttentionMatrix): Tensor {
  const [rows, heads, queries, width] = q.shape;
  const [, groups, keys] = k.shape;
  const scores = new Float32Array(rows * heads * queries * keys);
  const factor = matrix === 'dot' ? 1 : scale;
  for (let b = 0, n = 0; b < rows; b++)
    for (let h = 0; h < heads; h++) {
      const first = (b * groups + Math.floor((h * groups) / heads)) * keys * width;
      for (let t = 0; t < queries; t++) {
        const query = ((b * heads + h) * queries + t) * width;
        for (let s = 0; s < keys; s++, n++) {
          let sum = 0;
          for (let i = 0; i < width; i++) sum += q.data[query + i] * k.data[first + s * width + i];
          scores[n] = factor * sum;
        }
        if (matrix === 'weights') softmax(scores.subarray(n - keys, n));
      }
    }
  return new Tensor(scores, [rows, heads, queries, keys]);
}

function softmax(row: Float32Array): void {
  const most = row.reduce((a, b) => Math.max(a, b), -Infinity);
  let sum = 0;
  for (let i = 0; i < row.length; i++) sum += row[i] = Math.exp(row[i] - most);
  for (let i = 0; i < row.length; i++) row[i] /= sum;
}

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
    if (asked.minus) return reject();
    const whole = this.#tensors.get(name) ?? (await this.#load(name));
    if (!whole) return reject();
    this.#tensors.set(name, whole);
    const part = asked.slice ? whole.slice(asked.slice) : whole;
    return asked.pool ? part.pooled(asked.pool) : part;
  }
  async #load(name: string): Promise<Tensor | null> {
    const { scales, tensors } = await this.#data;
    const owner = name.slice(0, name.lastIndexOf('.'));
    const tail = name.slice(owner.length + 1);
    if (owner in scales && MATRICES.includes(tail)) {
      const [q, k] = await Promise.all([this.tensor('', `${owner}.q`), this.tensor('', `${owner}.k`)]);
      return attentionMatrix(q, k, scales[owner], tail as AttentionMatrix);
    }
    const stored = tensors[name];
    return stored ? new Tensor(new KINDS[stored.dtype](bytes(stored.data).buffer), stored.shape) : null;
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
