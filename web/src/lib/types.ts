// The server's data, generated from its schema, and names for the unions in it.

import type { ModelInfo, TraceInfo } from './api';
export type * from './api';

export type Kind = ModelInfo['kind'];
export type Outcome = TraceInfo['outcome'];
export type Intervention = TraceInfo['interventions'][number];

/** Whether models of this kind generate text token by token. */
export const isGenerative = (kind: Kind): boolean => kind === 'translate' || kind === 'generate';
