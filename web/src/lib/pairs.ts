// The inputs of a model that compares images with texts: several of each, and the selected pair.

import { storedInputs } from './inputStore';
import type { ModelInfo, SimilarityInfo, TraceInput } from './types';

type Params = Record<string, string | null | undefined>;

const examplesOf = (model: ModelInfo): TraceInput[] => (model.examples.length ? model.examples : [model.example]);

/** The images to compare: those given in this visit, or the examples. */
export function imagesOf(params: Params, model: ModelInfo): string[] {
  const given = storedInputs.get(params.held ?? '')?.images;
  return given?.length ? given : examplesOf(model).flatMap((one) => one.image ?? []);
}

/** The texts to compare, one per line of the input. */
export function textsOf(params: Params, model: ModelInfo): string[] {
  const lines = (params.in ?? '').split('\n').map((line) => line.trim());
  const given = [...new Set(lines.filter(Boolean))];
  return given.length ? given : examplesOf(model).flatMap((one) => one.text ?? []);
}

/** The selected image and text: URL parameter `pair`, "image.text". */
export function pairOf(params: Params, model: ModelInfo): [number, number] {
  const [image, text] = (params.pair ?? '').split('.').map(Number);
  const within = (n: number, count: number): number => (n >= 0 && n < count ? Math.trunc(n) : 0);
  return [within(image, imagesOf(params, model).length), within(text, textsOf(params, model).length)];
}

/** The probabilities of one image's texts at a temperature; 1 is the model's own. */
export function probabilities({ cosines, scale, bias, activation }: SimilarityInfo, image: number, t = 1): number[] {
  const logits = cosines[image].map((cosine) => (scale * cosine + bias) / t);
  if (activation === 'sigmoid') return logits.map((logit) => 1 / (1 + Math.exp(-logit)));
  const most = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - most));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}
