// The source of the page's data: a running server, or a trace embedded in the page.

import { PageError, ServerError } from './errors';
import { connection } from './connection.svelte';
import { KINDS, Tensor } from './tensor';
import type {
  CorpusInfo,
  DifferenceInfo,
  ErrorInfo,
  HeadAblation,
  HeadsInfo,
  LensInfo,
  LinksInfo,
  LogitAttribution,
  ModelsResponse,
  NextTokenInfo,
  PatchedSite,
  PatchingSetup,
  RunInfo,
  SearchInfo,
  SimilarityInfo,
  SentencesResponse,
  RunSnapshots,
  StepInfo,
  TokenFlow,
  TraceInfo,
  TraceInput,
  TraceRequest,
  FeedForwardUnitInfo,
} from './types';

export interface TensorQuery {
  slice?: string;
  pool?: number;
  minus?: string;
}

export interface FlowQuery {
  sequence?: string;
  position?: number;
  row: number;
}

/** How heads are ablated and measured; `reference` is a trace whose outputs replace them. */
export interface AblationOptions {
  mode?: 'zero' | 'mean' | 'resample';
  metric?: 'kl' | 'log_prob';
  at?: number;
  position?: number;
  token?: number;
  reference?: string;
}

export interface Source {
  /** False: the data is embedded in the page, and no model can be run. */
  readonly live: boolean;
  models(): Promise<ModelsResponse>;
  /** The sentences that a translation model translates one by one. */
  sentences(model: string, input: TraceInput): Promise<string[]>;
  trace(request: TraceRequest): Promise<TraceInfo>;
  tensor(trace: string, name: string, query?: TensorQuery): Promise<Tensor>;
  heads(trace: string): Promise<HeadsInfo>;
  ablation(trace: string, attention: string, options?: AblationOptions): Promise<HeadAblation>;
  links(trace: string, queries: string, query: number, keys: string, key: number): Promise<LinksInfo>;
  attribution(
    trace: string,
    position: number | null,
    token: number | null,
    against?: number | null,
  ): Promise<LogitAttribution>;
  patching(clean: string, corrupted: string): Promise<PatchingSetup>;
  patchedSite(clean: string, corrupted: string, name: string): Promise<PatchedSite>;
  /** Head patterns over the first `count` sentences of the corpus. */
  corpus(model: string, count: number): Promise<CorpusInfo>;
  lens(trace: string, position: number, top?: number): Promise<LensInfo>;
  next(trace: string, position: number, top?: number): Promise<NextTokenInfo>;
  /** The flow of a token, by default of the one whose prediction matters most. */
  flow(trace: string, query: FlowQuery): Promise<TokenFlow>;
  unit(trace: string, ffn: string, unit: number): Promise<FeedForwardUnitInfo>;
  difference(before: string, after: string): Promise<DifferenceInfo>;
  step(
    model: string,
    input: TraceInput,
    generatedIds: number[],
    parameters?: Record<string, unknown>,
  ): Promise<StepInfo>;
  search(model: string, input: TraceInput, parameters: Record<string, unknown>): Promise<SearchInfo>;
  /** Compare every image with every text. */
  similarity(model: string, images: string[], texts: string[]): Promise<SimilarityInfo>;
  run(id: string): Promise<RunInfo>;
  snapshots(id: string, input: TraceInput): Promise<RunSnapshots>;
}

async function fetchChecked(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    connection.fail();
    throw new PageError({ key: 'problem.no_server' });
  }
  connection.succeed();
  if (response.ok) return response;
  let info: ErrorInfo = {
    code: '',
    message: `${response.status} ${response.statusText}`,
    type: '',
    param: null,
    fields: {},
  };
  try {
    info = (await response.json()).error;
  } catch {
    // not from our server, e.g. a proxy's error page
  }
  throw new ServerError(info, response.status);
}

const json = async <T>(path: string): Promise<T> => (await fetchChecked(path)).json();

const post = async <T>(path: string, body: unknown): Promise<T> =>
  (
    await fetchChecked(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  ).json();

const queryString = (params: object): string => {
  const entries = Object.entries(params).filter(([, value]) => value !== undefined && value !== null);
  return new URLSearchParams(entries.map(([name, value]) => [name, String(value)])).toString();
};

const CACHE_BYTES = 96 * 2 ** 20; // of tensors, so that going back to a stage is immediate
const MAX_REQUESTS = 64; // a request may contain an image

export class ServerSource implements Source {
  readonly live = true;
  #cache = new Map<string, { promise: Promise<Tensor>; bytes: number }>(); // most recent last; 0 bytes while pending
  #bytes = 0;
  #requests = new Map<string, TraceRequest>(); // to compute a trace again after the server has evicted it

  models(): Promise<ModelsResponse> {
    return json('models');
  }

  async sentences(model: string, { text, to }: TraceInput): Promise<string[]> {
    return (await post<SentencesResponse>('trace/sentences', { model, text, to })).sentences;
  }

  async trace(request: TraceRequest): Promise<TraceInfo> {
    const info = await post<TraceInfo>('trace', request);
    this.#remember(info.id, request);
    return info;
  }

  #remember(trace: string, request: TraceRequest): void {
    this.#requests.delete(trace);
    this.#requests.set(trace, request);
    if (this.#requests.size > MAX_REQUESTS) this.#requests.delete(this.#requests.keys().next().value!);
  }

  tensor(trace: string, name: string, query: TensorQuery = {}): Promise<Tensor> {
    const path = `trace/${trace}/tensor?${queryString({ name, ...query })}`;
    const entry = this.#cache.get(path);
    if (entry) {
      this.#cache.delete(path);
      this.#cache.set(path, entry);
      return entry.promise;
    }
    const load = async (): Promise<Tensor> => {
      const response = await fetchChecked(path);
      const buffer = await response.arrayBuffer();
      const shape = response.headers.get('x-shape') ?? '';
      const kind = KINDS[response.headers.get('x-dtype') ?? 'float32'];
      return new Tensor(new kind(buffer), shape === '' ? [] : shape.split(',').map(Number));
    };
    const { minus } = query;
    const promise = this.#retry(trace, minus ? () => this.#retry(minus, load) : load);
    const added = { promise, bytes: 0 };
    this.#cache.set(path, added);
    promise.then(
      (tensor) => {
        added.bytes = tensor.data.byteLength;
        this.#bytes += added.bytes;
        this.#evict();
      },
      () => this.#cache.delete(path),
    );
    return promise;
  }

  /** Evict the least recently used tensors; pending ones have no size yet and stay. */
  #evict(): void {
    for (const [path, { bytes }] of this.#cache) {
      if (this.#bytes <= CACHE_BYTES) return;
      if (bytes === 0) continue;
      this.#cache.delete(path);
      this.#bytes -= bytes;
    }
  }

  /** Send a request; if the server has evicted the trace, compute it again first. */
  async #retry<T>(trace: string, load: () => Promise<T>): Promise<T> {
    try {
      return await load();
    } catch (error) {
      const request = this.#requests.get(trace);
      if (!(error instanceof ServerError) || error.status !== 404 || !request) throw error;
      await post('trace', request);
      this.#remember(trace, request);
      return load();
    }
  }

  heads(trace: string): Promise<HeadsInfo> {
    return this.#retry(trace, () => json(`trace/${trace}/heads`));
  }
  ablation(trace: string, attention: string, options: AblationOptions = {}): Promise<HeadAblation> {
    return this.#retry(trace, () => json(`trace/${trace}/ablation?${queryString({ attention, ...options })}`));
  }
  links(trace: string, queries: string, query: number, keys: string, key: number): Promise<LinksInfo> {
    return this.#retry(trace, () => json(`trace/${trace}/links?${queryString({ queries, query, keys, key })}`));
  }
  attribution(
    trace: string,
    position: number | null,
    token: number | null,
    against?: number | null,
  ): Promise<LogitAttribution> {
    const query = queryString({ position, token, against });
    return this.#retry(trace, () => json(`trace/${trace}/logit_attribution?${query}`));
  }
  patching(clean: string, corrupted: string): Promise<PatchingSetup> {
    return this.#retry(clean, () => this.#retry(corrupted, () => json(`trace/${clean}/patching/${corrupted}`)));
  }
  patchedSite(clean: string, corrupted: string, name: string): Promise<PatchedSite> {
    const path = `trace/${clean}/patching/${corrupted}/site?${queryString({ name })}`;
    return this.#retry(clean, () => this.#retry(corrupted, () => json(path)));
  }
  corpus(model: string, count: number): Promise<CorpusInfo> {
    return json(`models/${encodeURIComponent(model)}/corpus?${queryString({ count })}`);
  }
  lens(trace: string, position: number, top = 5): Promise<LensInfo> {
    return this.#retry(trace, () => json(`trace/${trace}/logit_lens?${queryString({ position, top })}`));
  }
  next(trace: string, position: number, top = 100): Promise<NextTokenInfo> {
    return this.#retry(trace, () => json(`trace/${trace}/next?${queryString({ position, top })}`));
  }
  flow(trace: string, query: FlowQuery): Promise<TokenFlow> {
    return this.#retry(trace, () => json(`trace/${trace}/flow?${queryString(query)}`));
  }
  unit(trace: string, ffn: string, unit: number): Promise<FeedForwardUnitInfo> {
    return this.#retry(trace, () => json(`trace/${trace}/unit?${queryString({ ffn, unit })}`));
  }
  difference(before: string, after: string): Promise<DifferenceInfo> {
    return this.#retry(before, () => this.#retry(after, () => json(`trace/${before}/difference/${after}`)));
  }
  step(model: string, input: TraceInput, generatedIds: number[], parameters = {}): Promise<StepInfo> {
    return post('trace/step', { ...input, model, generated_ids: generatedIds, parameters });
  }
  search(model: string, input: TraceInput, parameters: Record<string, unknown>): Promise<SearchInfo> {
    return post('trace/search', { ...input, ...parameters, model });
  }
  similarity(model: string, images: string[], texts: string[]): Promise<SimilarityInfo> {
    return post('trace/similarity', { model, images, texts });
  }
  run(id: string): Promise<RunInfo> {
    return json(`runs/${encodeURIComponent(id)}`);
  }
  snapshots(id: string, input: TraceInput): Promise<RunSnapshots> {
    return json(`runs/${encodeURIComponent(id)}/snapshots?${queryString({ text: input.text, target: input.target })}`);
  }
}
