// What the server says, shape by shape. The Python side of these stands in glassformer/interpret.

export type Kind = 'translate'|'generate'|'fill'|'embed'|'classify'|'answer'|'image'|'forecast'
export interface ModelInfo { id:string; name:string; family:string|null; shape:'encoder-decoder'|'encoder-only'|'decoder-only'; kind:Kind; parameters:number; bytes:number;
  max_length:number|null; labels:string[]|null; languages:string[]|null /*that it can be told to write*/; outline:Outline; example:TraceInput; examples:TraceInput[] /*to choose from, the example first; none where it is the only one*/;
  image:{height:number;width:number;channels:number;patch:[number,number];grid:[number,number]}|null;
  series:{context:number;horizon:number;channels:string[];patch:number;stride:number; scaling?:'std'|'mean'|'none' /*what is done to a channel before it is cut*/}|null }
export interface Outline { d_model:number; stacks:StackInfo[]; head:{kind:string; vocab:number|null; labels:number|null; tied:boolean; bias:boolean} }
export interface StackInfo { name:'encoder'|'decoder'; embed:string /*'src_embed'|'tgt_embed'|'embed'*/; embed_scale:number /*what token vectors are multiplied by; 1: nothing*/; sequence:'source'|'target'|'input'; layers:number; wiring:'pre'|'post'|'parallel'; causal:boolean; window:number|null;
  norm:string; final_norm:boolean; heads:number; kv_heads:number; head_dim:number; d_ff:number; activation:string; gated:boolean; biases:string[] /*of the feed-forward: up, gate, down*/; cross:boolean;
  position:{kind:'sinusoidal'|'learned'|'rotary'|'relative'|'alibi'|'none'; max_len:number|null; base:number|null; layout:'interleaved'|'halves'|null /*of sines and cosines*/; name:string|null /*prefix of the derived position tensors*/}; parameters:Record<string,number> }
export interface TraceInput { text?:string; target?:string|number[] /*what was written so far: ids, or text; default: the model's own answer for encoder-decoder*/; image?:string /*data: URL, PNG or JPEG, or base64*/; series?:{columns:Record<string,number[]>; truth?:number} /*truth: how many of the last values are held back*/; to?:string; question?:string; context?:string }
export type TraceRequest = TraceInput & { model:string; changes?:Change[] }
export type Change =
  | {kind:'head_off'; attention:string; head:number}
  | {kind:'layer_off'; block:string /*'encoder.blocks.3': its residual passes through unchanged*/}
  | {kind:'mask_token'; sequence:string; position:number}
  | {kind:'swap'; sequence:string; positions:[number,number]}
  | {kind:'residual'; name:string /*any resid_* name*/; position:number; scale:number}
  | {kind:'positions'; stack:string; stretch:number}     // where each token stands is multiplied by this: the scheme's length changed
export interface TraceInfo { id:string; model:string; kind:Kind; input:TraceInput; changes:Change[]; sequences:Sequence[]; stations:Station[]; tensors:Record<string,number[]> /*recorded names with shapes*/; attentions:AttentionInfo[];
  growth:Record<string /*stack*/, string[] /*sites*/>; outcome:Outcome; rows:string[]|null /*names of batch rows: series channels*/; seconds:{forward:number;trace:number}; kernel:string }
export interface Sequence { name:'source'|'target'|'input'; kind:'text'|'patches'|'series'; text:string|null; tokens:Token[]; grid:[number,number]|null; prefix:number }
export interface Token { id:number|null; piece:string /*readable*/; raw:string|null /*as the vocabulary spells it*/; start:number|null; end:number|null /*characters of text*/; bytes:string|null /*hex, where the piece is bytes and no whole letters*/; special:boolean; box?:[number,number,number,number] /*image patch x,y,w,h*/; span?:[number,number] /*series patch: first, one past last step*/ }
export interface AttentionInfo { name:string; stack:'encoder'|'decoder'; layer:number; kind:'self'|'cross'; queries:string; keys:string /*sequence names*/; heads:number; kv_heads:number; scale:number; head_dim:number; biased:boolean; causal:boolean; window:number|null }
export interface Station { id:string /*'decoder.3.self','encoder.embed','encoder.position','decoder.2.ffn','decoder.2.norm_self','decoder.final','head','lens'...*/; kind:'tokens'|'embedding'|'position'|'attention'|'add_norm'|'feed_forward'|'final_norm'|'head'; stack:string|null; layer:number|null; sequence:string; tensors:Record<string,string> /*role -> name: e.g. {before, sublayer, sum, normed, after} or {q,k,v,heads,out} or {gate?,up,act,down}*/ }
export type Outcome =
  | {kind:'translate'|'generate'; text:string; written:number /*tokens of target written by the model*/; ended:string|null}
  | {kind:'fill'; masks:{position:number; guesses:Word[]}[]}
  | {kind:'embed'; vector_name:string; dims:number; norm:number}        // the vector itself as a tensor
  | {kind:'classify'|'image'; labels:{label:string; probability:number}[]}
  | {kind:'answer'; text:string; start:number; end:number; score:number}
  | {kind:'forecast'; columns:string[]; horizon:number; past:number; quantiles:number[]|null; names:{past:string; forecast:string; truth:string|null; quantiles:string|null; persistence:string}}   // tensors (C, steps), (C, q, steps)
export interface Word { id:number; text:string; probability?:number; logit?:number }
export interface NextInfo { position:number; vocabulary:number; logsumexp:number; words:Word[] /*best `count` by logit*/; logits:string /*tensor name to slice for all of them*/ }
export interface LensInfo { position:number; stack:string; layers:{site:string; words:Word[]; entropy:number; rank_of_final:number}[] }
export interface HeadsInfo { attentions:{ name:string; heads:{ head:number; scores:Record<'previous'|'next'|'self'|'first'|'last'|'same'|'separator'|'punctuation'|'local'|'spread'|'alignment'|'row'|'column', number>; role:string|null /*the best one above its chance level, else null*/; share:number; chance:number; entropy:number; distance:number }[] }[] }
export interface StepInfo { words:Word[]; logsumexp:number; vocabulary:number; ended:boolean; position:number; tokens:Token[] /*of written*/ ; text:string }
export interface SearchInfo { num_beams:number; length_penalty:number; formula:string; nodes:{id:number; parent:number|null; step:number; token:number; text:string; logprob:number; score:number; length_term:number; rank:number; state:'kept'|'pruned'|'finished'; why:string; place:number|null}[]; results:{place:number; text:string; ids:number[]; score:number; why:string}[] }
export interface DifferenceInfo { outcome:{before:Outcome; after:Outcome}; words:{word:Word; before:number; after:number}[] /*largest changes of the last position's probabilities*/; kl:number|null; positions:number[]|null /*KL by position*/; residual:{stack:string; sites:string[]; name:string /*tensor (sites,T) of relative change*/}[] }
export interface RunInfo { id:string; name:string; job:string; live:boolean; steps:number; total:number|null; curves:Record<string,{step:number[]; value:number[]}>; checkpoints:{step:number; path:string; loss:number|null}[]; samples:{step:number; items:{source:string; wanted:string|null; got:string}[]}[] }
export interface FilmInfo { text?:string /*that every frame read*/; frames:{step:number; trace:string /*id of a trace at that checkpoint*/; heads:HeadsInfo; sample:string|null; loss:number|null}[] }
export interface ErrorInfo { message:string; type:string; code:string; param:string|null; fields:Record<string, unknown> }
