// The server's data, generated from its schema, and names for the unions in it.

import type { ModelInfo, TraceInfo } from './api';
export type * from './api';

export type Kind = ModelInfo['kind'];
export type Outcome = TraceInfo['outcome'];
export type Intervention = TraceInfo['interventions'][number];
