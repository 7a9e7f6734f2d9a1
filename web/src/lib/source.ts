// The source of the page's data: a running server, or a trace embedded in the page.

import { PageError, ServerError } from './errors';
import { connection } from './connection.svelte';
import { KINDS, Tensor } from './tensor';
import type {
  DifferenceInfo,
  ErrorInfo,
  HeadAblation,
  HeadsInfo,
  LensInfo,
  ModelsResponse,
  NextInfo,
  RunInfo,
  SearchInfo,
  SentencesResponse,
  RunSnapshots,
  StepInfo,
  TraceInfo,
  TraceInput,
  TraceRequest,
  UnitInfo,
} from './types';

export interface TensorQuery {
  slice?: string;
  pool?: number;
  minus?: string;
}

export interface Source {
  /** False: what is shown was kept in the page; nothing new can be asked of a model. */
  readonly live: boolean;
  models(): Promise<ModelsResponse>;
  /** What a translator reads one by one of a text. */
  sentences(model: string, input: TraceInput): Promise<string[]>;
  trace(request: TraceRequest): Promise<TraceInfo>;
  tensor(trace: string, name: string, asked?: TensorQuery): Promise<Tensor>;
  heads(trace: string): Promise<HeadsInfo>;
  ablation(trace: string, attention: string): Promise<HeadAblation>;
  lens(trace: string, position: number, top?: number): Promise<LensInfo>;
  next(trace: string, position: number, top?: number): Promise<NextInfo>;
  unit(trace: string, ffn: string, unit: number): Promise<UnitInfo>;
  difference(before: string, after: string): Promise<DifferenceInfo>;
  step(
    model: string,
    input: TraceInput,
    generatedIds: number[],
    parameters?: Record<string, unknown>,
  ): Promise<StepInfo>;
  search(model: string, input: TraceInput, parameters: Record<string, unknown>): Promise<SearchInfo>;
  run(id: string): Promise<RunInfo>;
  snapshots(id: string, input: TraceInput): Promise<RunSnapshots>;
}

async function answered(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch {
    connection.lost();
    throw new PageError({ key: 'problem.no_server' });
  }
  connection.heard();
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

const json = async <T>(path: string): Promise<T> => (await answered(path)).json();

const post = async <T>(path: string, body: unknown): Promise<T> =>
  (
    await answered(path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  ).json();

const query = (words: object): string => {
  const given = Object.entries(words).filter(([, value]) => value !== undefined);
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
};

const KEPT_BYTES = 96 * 2 ** 20; // tensors kept so that going back to a stage is immediate
const KEPT_REQUESTS = 64; // a request may hold a whole picture

export class ServerSource implements Source {
  readonly live = true;
  #kept = new Map<string, { made: Promise<Tensor>; bytes: number }>(); // the most recent last; 0 bytes while on its way
  #bytes = 0;
  #requests = new Map<string, TraceRequest>(); // to ask again for a trace that the connection has dropped

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
    if (this.#requests.size > KEPT_REQUESTS) this.#requests.delete(this.#requests.keys().next().value!);
  }

  tensor(trace: string, name: string, asked: TensorQuery = {}): Promise<Tensor> {
    const path = `trace/${trace}/tensor?${query({ name, ...asked })}`;
    const kept = this.#kept.get(path);
    if (kept) {
      this.#kept.delete(path);
      this.#kept.set(path, kept);
      return kept.made;
    }
    const ask = async (): Promise<Tensor> => {
      const response = await answered(path);
      const buffer = await response.arrayBuffer();
      const shape = response.headers.get('x-shape') ?? '';
      const kind = KINDS[response.headers.get('x-dtype') ?? 'float32'];
      return new Tensor(new kind(buffer), shape === '' ? [] : shape.split(',').map(Number));
    };
    const { minus } = asked;
    const made = this.#again(trace, minus ? () => this.#again(minus, ask) : ask);
    const mine = { made, bytes: 0 };
    this.#kept.set(path, mine);
    made.then(
      (tensor) => {
        mine.bytes = tensor.data.byteLength;
        this.#bytes += mine.bytes;
        this.#forget();
      },
      () => this.#kept.delete(path),
    );
    return made;
  }

  /** Let go of what was not asked for longest; what is on its way has no size yet, and stays. */
  #forget(): void {
    for (const [path, { bytes }] of this.#kept) {
      if (this.#bytes <= KEPT_BYTES) return;
      if (bytes === 0) continue;
      this.#kept.delete(path);
      this.#bytes -= bytes;
    }
  }

  /** Do it; where the server has dropped the trace meanwhile, have it made once more first. */
  async #again<T>(trace: string, ask: () => Promise<T>): Promise<T> {
    try {
      return await ask();
    } catch (error) {
      const request = this.#requests.get(trace);
      if (!(error instanceof ServerError) || error.status !== 404 || !request) throw error;
      await post('trace', request);
      this.#remember(trace, request);
      return ask();
    }
  }

  heads(trace: string): Promise<HeadsInfo> {
    return this.#again(trace, () => json(`trace/${trace}/heads`));
  }
  ablation(trace: string, attention: string): Promise<HeadAblation> {
    return this.#again(trace, () => json(`trace/${trace}/ablation?${query({ attention })}`));
  }
  lens(trace: string, position: number, top = 5): Promise<LensInfo> {
    return this.#again(trace, () => json(`trace/${trace}/logit_lens?${query({ position, top })}`));
  }
  next(trace: string, position: number, top = 100): Promise<NextInfo> {
    return this.#again(trace, () => json(`trace/${trace}/next?${query({ position, top })}`));
  }
  unit(trace: string, ffn: string, unit: number): Promise<UnitInfo> {
    return this.#again(trace, () => json(`trace/${trace}/unit?${query({ ffn, unit })}`));
  }
  difference(before: string, after: string): Promise<DifferenceInfo> {
    return this.#again(before, () => this.#again(after, () => json(`trace/${before}/difference/${after}`)));
  }
  step(model: string, input: TraceInput, generatedIds: number[], parameters = {}): Promise<StepInfo> {
    return post('trace/step', { ...input, model, generated_ids: generatedIds, parameters });
  }
  search(model: string, input: TraceInput, parameters: Record<string, unknown>): Promise<SearchInfo> {
    return post('trace/search', { ...input, ...parameters, model });
  }
  run(id: string): Promise<RunInfo> {
    return json(`runs/${encodeURIComponent(id)}`);
  }
  snapshots(id: string, input: TraceInput): Promise<RunSnapshots> {
    return json(`runs/${encodeURIComponent(id)}/snapshots?${query({ text: input.text, target: input.target })}`);
  }
}
