// The steps of the tour for a model and input: which view to open, what to highlight, and a formula.

import { feedForward, POSITIONS, scores, waves } from '../lib/formulas';
import { has as hasText, type View } from '../lib';
import type { ModelInfo, StackInfo, TraceInfo } from '../lib/types';
import { hasSource, isGenerative, offers } from '../lib/types';

export interface Step {
  name: string; // its heading is tour.NAME.title
  told: string[]; // its sentences are tour.TOLD, one after the other
  view: View;
  words: Record<string, string | number | null>; // of the address
  points: string[]; // selectors, the first that is there is pointed at
  tex: string | null;
}

const live = (name: string): string => `[data-tour~="${name}"]`;

const NORMS: Record<StackInfo['wiring'], string> = {
  pre: 'x \\leftarrow x + \\mathrm{Sublayer}(\\mathrm{Norm}(x))',
  post: 'x \\leftarrow \\mathrm{Norm}(x + \\mathrm{Sublayer}(x))',
  res_post: 'x \\leftarrow x + \\mathrm{Norm}(\\mathrm{Sublayer}(x))',
  parallel: 'x \\leftarrow x + \\mathrm{Attention}(\\mathrm{Norm}(x)) + \\mathrm{FFN}(\\mathrm{Norm}(x))',
};

function positioned(position: StackInfo['position']): string | null {
  if (position.kind === 'none') return null;
  return position.kind === 'sinusoidal'
    ? `\\begin{gathered} ${waves(position).join(' \\\\ ')} \\end{gathered}`
    : POSITIONS[position.kind];
}

/** What can be done beyond looking. */
export interface Able {
  ask: boolean; // there is a model that answers; a saved page has none
  open: boolean; // there is another model to open
}

/** The steps for a model; a step that has nothing to show there is left out, and so is what cannot be done there. */
export function stepsOf(model: ModelInfo, trace: TraceInfo, able: Able): Step[] {
  const [first] = model.outline.stacks;
  const last = model.outline.stacks[model.outline.stacks.length - 1];
  const causal = model.outline.stacks.find((stack) => stack.causal);
  const patches = model.kind === 'ask' ? 'question' : model.image ? 'picture' : model.series ? 'series' : 'text';
  const scale = trace.attentions[0]?.scale ?? 1;
  const scaled = Math.abs(scale - 1) > 1e-6;
  const has = (id: string): boolean => trace.stages.some((one) => one.id === id);

  const at = (name: string, id: string, options: Partial<Step> = {}): Step => ({
    name,
    told: [name],
    view: 'model',
    points: [live(name), `[data-stage="${id}"]`],
    tex: null,
    ...options,
    words: { at: id, tab: null, ...options.words },
  });
  const steps: (Step | null)[] = [
    {
      name: 'input',
      told: [`input.${patches}`, able.ask ? `input.${patches}.yours` : 'input.static'],
      view: 'model',
      words: { at: null },
      points: [live('input')],
      tex: null,
    },
    patches === 'text'
      ? at('tokens', `${first.name}.tokens`, { told: ['tokens.text'] })
      : {
          name: 'tokens',
          told: [`tokens.${patches}`],
          view: 'model',
          words: { at: null, tab: null },
          points: [live('tokens')],
          tex: null,
        },
    at('embedding', `${first.name}.embed`, {
      told: [patches === 'picture' && !trace.sequences[0].prefix ? 'embedding.picture_alone' : `embedding.${patches}`],
      tex: {
        text: `x_t = ${first.embed_scale === 1 ? '' : '\\sqrt{d}\\; '}E_{\\,\\mathrm{id}(t)} \\in \\mathbb{R}^{d}`,
        question: 'x_t = \\begin{cases} E_{\\,\\mathrm{id}(t)} \\\\ W\\,\\mathrm{patch}_t + b \\end{cases}',
        picture: 'x_t = W\\,\\mathrm{patch}_t + b',
        series: 'x_t = W\\,\\mathrm{patch}_t + b',
      }[patches],
    }),
    first.position.kind === 'none'
      ? null
      : at('position', `${first.name}.position`, {
          told: [`position.${first.position.kind}`],
          tex: positioned(first.position),
        }),
    at('attention', `${first.name}.0.self`, {
      words: { tab: 'scores' },
      points: [
        `${live('scores')} [data-figure]`,
        live('scores'),
        live('attention'),
        `[data-stage="${first.name}.0.self"]`,
      ],
      tex: `\\mathrm{softmax}\\!\\left(${scaled ? '\\frac{QK^\\top}{\\sqrt{d_k}}' : 'QK^\\top'}\\right) V`,
    }),
    {
      name: 'heads',
      told: ['heads'],
      view: 'heads',
      words: { at: null, tab: null },
      points: [live('layer'), '[data-view="heads"]'],
      tex: '\\mathrm{Concat}(\\mathrm{head}_1, \\dots, \\mathrm{head}_h)\\, W^O',
    },
    causal
      ? at('mask', `${causal.name}.0.self`, {
          words: { tab: 'weights' },
          points: [live('weights'), live('attention'), `[data-stage="${causal.name}.0.self"]`],
          tex: 's_{ij} = -\\infty \\quad (j > i)',
        })
      : at('mask', `${first.name}.0.self`, {
          told: ['mask.both'],
          words: { tab: 'weights' },
          points: [live('weights'), live('attention')],
        }),
    at('feed_forward', `${first.name}.0.ffn`, {
      told: [first.gated ? 'feed_forward.gated' : 'feed_forward'],
      tex: feedForward(first),
    }),
    at('add_norm', `${first.name}.0.norm_self`, { told: [`add_norm.${first.wiring}`], tex: NORMS[first.wiring] }),
    {
      name: 'layers',
      told: [`layers.${first.wiring}`, ...(last.cross ? ['layers.decoder'] : []), 'layers.stream'],
      view: 'model',
      words: { at: null, tab: null },
      points: [live('map'), '[data-figure="model"]', live('residual')],
      tex: null,
    },
    last.cross
      ? at('cross', `${last.name}.${last.layers - 1}.cross`, {
          told: [hasText(`tour.cross.${model.kind}`) ? `cross.${model.kind}` : 'cross'],
          points: [
            `${live('cross')} ${live('cross')}`,
            live('cross'),
            `[data-stage="${last.name}.${last.layers - 1}.cross"]`,
          ],
          tex: '\\begin{aligned} Q &= X_{dec}\\, W^Q \\\\ K &= X_{enc}\\, W^K,\\quad V = X_{enc}\\, W^V \\end{aligned}',
        })
      : null,
    at('head', 'head', {
      told: [
        `head.${model.kind === 'caption' ? 'translate' : model.kind}`,
        ...(model.kind === 'embed' && able.ask ? ['head.embed.two'] : []),
      ],
      tex:
        isGenerative(model.kind) || ['fill', 'classify', 'image'].includes(model.kind)
          ? `p = \\mathrm{softmax}(${scores(model.outline.head, 'x')})`
          : null,
    }),
    isGenerative(model.kind)
      ? {
          name: 'decoding',
          told: [
            `decoding.${hasSource(model.kind) ? 'translate' : model.kind}`,
            able.ask ? 'decoding.choose' : 'decoding.static',
          ],
          view: 'decoding',
          words: { at: null, tab: null, n: 0 },
          points: ['[data-figure="decoding-written"]', live('decoding')],
          tex: hasSource(model.kind)
            ? '\\hat y \\approx \\arg\\max_y \\sum_t \\log p(y_t \\mid y_{<t},\\, x)'
            : 'y_t \\sim p(y \\mid y_{<t})',
        }
      : null,
    able.ask && offers(model, 'change')
      ? {
          name: 'change',
          told: ['change'],
          view: 'change',
          words: { at: null, tab: null },
          points: [`${live('change')} table`, live('change')],
          tex: null,
        }
      : null,
    {
      name: 'shapes',
      told: [`shapes.${model.architecture}`, ...(able.open ? ['shapes.open'] : [])],
      view: 'model',
      words: { at: null, tab: null },
      points: [live('models'), '[data-figure="model"]', live('residual')],
      tex: null,
    },
  ];
  return steps.filter((step): step is Step => step !== null && (!step.words.at || has(String(step.words.at))));
}
