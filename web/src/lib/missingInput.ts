// Finds missing inputs before a request is sent.

import type { Problem } from './errors';
import type { ModelInfo, TraceInput } from './types';

const blank = (text: string | undefined): boolean => !text?.trim();

export function missingInput(input: TraceInput, model: ModelInfo): Problem | null {
  if (model.series) return input.series ? null : { key: 'problem.no_series' };
  if (model.kind === 'similarity' && blank(input.text)) return { key: 'problem.no_text' };
  if (model.kind === 'ask' && blank(input.question)) return { key: 'problem.no_question' };
  if (model.image) return input.image ? null : { key: 'problem.no_picture' };
  if (model.kind === 'answer')
    return blank(input.question) || blank(input.context) ? { key: 'problem.no_question' } : null;
  return blank(input.text) ? { key: 'problem.no_text' } : null;
}
