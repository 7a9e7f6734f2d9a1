// Interventions from a URL: keeps those that are valid for this trace.

import type { Intervention, StackInfo, TraceInfo } from '../lib/types';
import { blockOf } from '../model/stageNames';
import { MOST, sequenceOfSite, whereOf } from './interventions';

const FIELDS: Record<Intervention['kind'], string[]> = {
  ablate_head: ['attention', 'head'],
  skip_layer: ['block'],
  mask_token: ['sequence', 'position'],
  swap_tokens: ['sequence', 'positions'],
  scale_residual: ['name', 'position', 'scale'],
  scale_positions: ['stack', 'scale'],
  patch: ['name', 'source', 'head', 'position'],
  force_token: ['step', 'token'],
};
const LARGEST = 1000; // the server's limit for the scale of a residual
const FARTHEST = 64; // and for the factor of positions

/** The valid changes, at most one per target, and whether any was ignored. */
export function validInterventions(
  word: string | undefined,
  trace: TraceInfo,
  stacks: StackInfo[],
): { changes: Intervention[]; left: boolean } {
  if (!word) return { changes: [], left: false };
  let found: unknown;
  try {
    found = JSON.parse(word);
  } catch {
    return { changes: [], left: true };
  }
  if (!Array.isArray(found)) return { changes: [], left: true };
  const taken = new Map<string, Intervention>();
  for (const one of found)
    if (fits(one, trace, stacks) && taken.size < MOST && !taken.has(whereOf(one))) taken.set(whereOf(one), one);
  return { changes: [...taken.values()], left: taken.size < found.length };
}

function fits(given: unknown, trace: TraceInfo, stacks: StackInfo[]): given is Intervention {
  if (given === null || typeof given !== 'object' || !('kind' in given)) return false;
  const change = given as Intervention;
  if (!Object.hasOwn(FIELDS, change.kind)) return false;
  const named = Object.keys(change).filter((name) => name !== 'kind');
  if (named.length !== FIELDS[change.kind].length || !FIELDS[change.kind].every((name) => named.includes(name)))
    return false;
  const sequenceOf = (name: string) => trace.sequences.find((one) => one.name === name);
  const stands = (sequence: string, position: unknown): boolean =>
    counted(position, sequenceOf(sequence)?.tokens.length ?? 0);
  switch (change.kind) {
    case 'ablate_head':
      return counted(change.head, trace.attentions.find((one) => one.name === change.attention)?.heads ?? 0);
    case 'skip_layer':
      return trace.attentions.some((one) => change.block === blockOf(one));
    case 'mask_token':
      return stands(change.sequence, change.position);
    case 'swap_tokens': {
      const two: unknown = change.positions;
      if (!Array.isArray(two) || two.length !== 2 || two[0] === two[1]) return false;
      const sequence = sequenceOf(change.sequence);
      return two.every(
        (at) => stands(change.sequence, at) && (sequence?.kind === 'text' || at >= (sequence?.prefix ?? 0)),
      );
    }
    case 'scale_residual':
      return (
        typeof change.name === 'string' &&
        /\.blocks\.\d+\.resid_(in|self|cross|out)$/.test(change.name) &&
        Object.hasOwn(trace.tensors, change.name) &&
        stands(sequenceOfSite(trace, change.name), change.position) &&
        between(change.scale, -LARGEST, LARGEST)
      );
    case 'patch':
      return (
        typeof change.name === 'string' &&
        change.source !== null &&
        typeof change.source === 'object' &&
        (change.head == null || counted(change.head, 1024)) &&
        (change.position == null || counted(change.position, 1024))
      );
    case 'scale_positions':
      return (
        stacks.some((one) => one.name === change.stack && one.position.kind !== 'none') &&
        between(change.scale, 0, FARTHEST) &&
        change.scale !== 0
      );
    case 'force_token': // of a drawing
      return false;
  }
}

const counted = (value: unknown, count: number): boolean =>
  Number.isInteger(value) && (value as number) >= 0 && (value as number) < count;
const between = (value: unknown, low: number, high: number): boolean =>
  typeof value === 'number' && value >= low && value <= high;
