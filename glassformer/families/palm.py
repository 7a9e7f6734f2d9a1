"""PaLM-style decoder: parallel attention and gated feed-forward with one norm, multi-query, no biases.

The weights of PaLM were never published; the published layout here is Cohere's, which has the same block.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import decoder
from glassformer.families.family import TINY, Config, Family, Key, preset, variant
from glassformer.families.llama import BIAS, EXCLUDED, KEYS, read, table, write

# The 8B model. The paper initializes the tied token matrix with std 1 and divides the logits by
# sqrt(d_model). Here std is 0.02, which needs no division: `logit_scale` stays 1.
palm = variant(
    decoder,
    f"window window_layers qkv_bias ffn_bias qk_norm {EXCLUDED.replace('logit_scale', '')}",
    vocab_size=256000,
    num_heads=16,
    num_kv_heads=1,
    max_len=2048,
    norm="layer_no_bias",
    wiring="parallel",
    tied=True,
)
_NORM = Key("layer_norm_eps", "norm_eps", 1e-5)
_KEYS = (*(key for key in KEYS if key.ours != "norm_eps"), _NORM, BIAS)


def from_config(config: Config) -> spec.DecoderOnlySpec:
    config.only("use_qk_norm", False, None)
    options = read(config, "Cohere", _KEYS, rope_base=500000.0, max_len=8192, tied=True)
    return palm(**options, logit_scale=config.get("logit_scale", 0.0625))


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    scale = model.head.scale if isinstance(model.head, spec.LanguageModelSpec) else 1.0
    return {**write(model, "Cohere", _KEYS), "logit_scale": scale, "use_qk_norm": False}


FAMILY = Family(
    name="palm",
    model_types=("cohere",),
    architectures=("CohereForCausalLM", "CohereModel"),
    build=palm,
    presets={
        "palm-8b": {},
        "palm-62b": preset(8192, 32, 64, 32768),
        "palm-540b": preset(18432, 48, 118, 73728, head_dim=256),
    },
    tiny=TINY,
    from_config=from_config,
    to_config=to_config,
    table=partial(table, answer="model.", interleaved=True),
)
