"""The Transformer: parts, models and how they are built.

Who has read a chapter about the Transformer of 2017 reads these files, in this order:

1. `embeddings`: token ids -> vectors; `positions`: the waves that are added to them, and later schemes
2. `attention`: multi-head attention, with `kernels.explicit` for the formula; `masks`: who may attend to whom
3. `feedforward` and `norms`
4. `block`: one layer, with its wirings; `stack`: the layers of an encoder or a decoder
5. `inputs` and `model`: encoder-decoder, encoder-only, decoder-only; `heads`: from hidden states to logits

`spec` describes a model as nested dataclasses, and `build` makes modules of them. `kv_cache` is for decoding
step by step, `observe` for looking inside. `vision`, `series` and `diffusion` have the parts for images, time
series and diffusion models; no file above imports them.
"""
