"""PaLM-style decoder: parallel attention and gated feed-forward with one norm, multi-query, no biases.

The weights of PaLM were never published; the published layout here is Cohere's, which has the same block.
"""

from __future__ import annotations

from functools import partial

from glassformer.core import spec
from glassformer.families.decoder import DECODER
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Head, Key, fixed
from glassformer.families.llama import BIAS, llama_keys, table

_KEYS = llama_keys(
    Key("layer_norm_eps", "norm_eps", 1e-5),
    BIAS,
    Key("logit_scale", default=0.0625),
    fixed("use_qk_norm", False, None),
    rope_base=500000.0,
    max_len=8192,
    tied=True,
)

FAMILY = Family(
    name="palm",
    model_type="cohere",
    builder=DECODER,
    keys=_KEYS,
    # The 8B model. The paper initializes the tied token matrix with std 1 and divides the logits by
    # sqrt(d_model). Here std is 0.02, which needs no division: `logit_scale` stays 1.
    defaults={
        "vocab_size": 256000,
        "num_heads": 16,
        "num_kv_heads": 1,
        "max_len": 2048,
        "norm": "layer_no_bias",
        "wiring": "parallel",
        "tied": True,
    },
    heads={
        "CohereForCausalLM": Head(spec.LanguageModelSpec, from_options=True),
        "CohereModel": Head(spec.FeaturesSpec),
    },
    presets={
        "palm-8b": {},
        "palm-62b": preset(8192, 32, 64, 32768),
        "palm-540b": preset(18432, 48, 118, 73728, head_dim=256),
    },
    tiny=TINY,
    weight_table=partial(table, answer="model.", interleaved=True),
)
