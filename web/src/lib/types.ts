// The server's data, generated from its schema, and names for the unions in it.

import type { ModelInfo, TraceInfo } from './api';
export type * from './api';

export type Kind = ModelInfo['kind'];
export type Outcome = TraceInfo['outcome'];
export type Intervention = TraceInfo['interventions'][number];

/** Whether a model has something to show in a view. */
export const offers = (model: ModelInfo, view: string): boolean =>
  !(view === 'decoding' && !isGenerative(model.kind)) &&
  !(model.kind === 'draw' && (view === 'change' || view === 'heads'));

/** Whether models of this kind generate a target from a source: a text or an image. */
export const hasSource = (kind: Kind): boolean => kind === 'translate' || kind === 'caption';

/** Whether models of this kind generate text token by token. */
export const isGenerative = (kind: Kind): boolean => hasSource(kind) || kind === 'generate';
