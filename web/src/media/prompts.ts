// The prompt of a promptable segmenter in the URL: `points=x,y,1;x,y,0` (1 object, 0 background) and `box=x,y,x,y`.

import type { TraceInput } from '../lib/types';

export type Point = [number, number]; // x, y in pixels of the image

export interface Prompt {
  points: Point[];
  background_points: Point[];
  box: [number, number, number, number] | null;
}

export const NO_PROMPT: Prompt = { points: [], background_points: [], box: null };

export const promptOf = (input: TraceInput): Prompt => ({
  points: input.points ?? [],
  background_points: input.background_points ?? [],
  box: input.box ?? null,
});

const round = (n: number): number => Math.round(n * 10) / 10;

export function writePrompt(prompt: Prompt): { points: string | null; box: string | null } {
  const points = [
    ...prompt.points.map(([x, y]) => [round(x), round(y), 1]),
    ...prompt.background_points.map(([x, y]) => [round(x), round(y), 0]),
  ];
  return { points: points.join(';') || null, box: prompt.box?.map(round).join(',') ?? null };
}

export function readPrompt(params: Record<string, string>): Prompt | null {
  if (params.points === undefined && params.box === undefined) return null;
  const prompt: Prompt = { ...NO_PROMPT, points: [], background_points: [] };
  for (const one of (params.points ?? '').split(';')) {
    const [x, y, label] = one.split(',').map(Number);
    if (Number.isFinite(x) && Number.isFinite(y)) prompt[label === 0 ? 'background_points' : 'points'].push([x, y]);
  }
  const box = (params.box ?? '').split(',').map(Number);
  if (params.box && box.length === 4 && box.every(Number.isFinite)) prompt.box = box as Prompt['box'];
  return prompt;
}
