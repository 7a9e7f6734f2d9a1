"""Falcon: decoder with parallel or sequential attention and feed-forward, and shared key/value heads.

Published files fuse query, key and value rows by group: with G key/value heads, G times [H/G query heads,
one key head, one value head]. This covers the old multi-query layout (G = 1), the old multi-head layout (G =
H) and the new grouped layout.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.decoder import (
    RARE_OPTIONS,
    architectures,
    decoder,
    head_rows,
    read_head,
    read_pad,
    read_rotary,
    write_head,
    write_rotary,
)
from glassformer.families.family import (
    TINY,
    Config,
    Family,
    Key,
    layer_rows,
    model_prefixes,
    preset,
    read_options,
    rename_modules,
    spec_options,
    variant,
    write_options,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, SplitGroups, expand

# the 7B model
falcon = variant(
    decoder,
    f"""head_dim window window_layers norm gated qkv_bias qk_norm scale embed_dropout logit_scale init
    {RARE_OPTIONS}""",
    vocab_size=65024,
    d_model=4544,
    num_heads=71,
    num_kv_heads=1,
    max_len=2048,
    wiring="parallel",
    norm="layer",
    activation="gelu",
    gated=False,
    tied=True,
)
KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model", aliases=("n_embed",)),
    Key("num_attention_heads", "num_heads"),
    Key("ffn_hidden_size", "d_ff", 0),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 2048),
    Key("activation", default="gelu"),
    Key("layer_norm_epsilon", "norm_eps", 1e-5),
    Key("bias", "attention_bias", False),
    Key("hidden_dropout", "dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("tie_word_embeddings", "tied", True),
)


def from_config(config: Config) -> spec.DecoderOnlySpec:
    options = read_options(config, KEYS)
    kv_heads = config.get("num_kv_heads", options["num_heads"])
    multi_query = config.get("multi_query", True)
    parallel = config.get("parallel_attn", True)
    wiring = "parallel" if parallel else "pre"
    norms = config.only("num_ln_in_parallel_attn", None, 1, 2)
    if config.get("new_decoder_architecture", False):
        config.only("parallel_attn", True, default=True)
        wiring = "parallel" if norms == 1 else "parallel_split"
    else:
        if parallel:
            config.only("num_ln_in_parallel_attn", None, 1)
        if not multi_query:
            config.only("num_kv_heads", None, options["num_heads"])
        kv_heads = 1 if multi_query else options["num_heads"]
    alibi = config.get("alibi", False)
    rotary = spec.RotarySpec() if alibi else read_rotary(config, max_len=options["max_len"])
    head = read_head(config, "Falcon", dropout=options["dropout"])
    return falcon(
        **options,
        num_kv_heads=kv_heads,
        wiring=wiring,
        position="alibi" if alibi else "rotary",
        rope_base=rotary.base,
        rope_scaling=rotary.scaling,
        ffn_bias=options["attention_bias"],
        pad_id=read_pad(config, head),
        head=head,
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnlySpec)
    options, position, wiring = spec_options(model), model.decoder.position, model.decoder.block.wiring
    kv_heads = options["num_kv_heads"]
    grouped = kv_heads not in (1, options["num_heads"])
    return {
        "model_type": "falcon",
        **write_head(model.head, "Falcon"),
        **write_options(model, KEYS),
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": wiring == "parallel_split" or grouped,
        "multi_query": kv_heads == 1,
        "parallel_attn": wiring != "pre",
        "num_ln_in_parallel_attn": {"pre": None, "parallel": 1, "parallel_split": 2}[wiring],
        "alibi": isinstance(position, spec.AlibiSpec),
        **(write_rotary(position) if isinstance(position, spec.RotarySpec) else {}),
        "pad_token_id": options["pad_id"],
    }


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.DecoderOnlySpec)
    stack, block = model.decoder, model.decoder.block
    heads = block.attention.num_heads
    groups = block.attention.num_kv_heads or heads
    first, second = {
        "pre": ("input_layernorm", "post_attention_layernorm"),
        "parallel": ("input_layernorm", ""),
        "parallel_split": ("ln_attn", "ln_mlp"),
    }[block.wiring]
    norms = {first: "norm_self"} | ({second: "norm_ffn"} if second else {})
    linear = {
        "self_attention.dense": "self_attn.out_proj",
        "mlp.dense_h_to_4h": "ffn.up",
        "mlp.dense_4h_to_h": "ffn.down",
    }
    theirs, ours = "{base}h.{i}", "decoder.blocks.{i}"
    parts = ("weight", "bias") if block.attention.biases else ("weight",)
    fused = SplitGroups(
        f"{theirs}.self_attention.query_key_value.{{a}}",
        f"{ours}.self_attn.{{q,k,v}}_proj.{{a}}",
        groups=groups,
        queries=heads // groups,
        head_dim=stack.d_model // heads,
    )
    layers = (
        *layer_rows(theirs, ours, stack.num_layers, norms),
        *expand((fused,), i=stack.num_layers, a=parts),
        *layer_rows(theirs, ours, stack.num_layers, linear, parts),
        *rename_modules(("{base}ln_f", "decoder.final_norm")),
        Ignored("{base}h.*.self_attention.*.inv_freq"),  # computed here; only in older files
    )
    ends = head_rows(model, token="{base}word_embeddings.weight", each_token="classifier")
    return WeightTable((*layers, *ends), base=model_prefixes(model.head, "transformer."))


_BIAS = {"attention_bias": True, "ffn_bias": True}

FAMILY = Family(
    name="falcon",
    model_types=("falcon",),
    architectures=architectures("Falcon"),
    build=falcon,
    presets={
        "falcon-7b": {},
        "falcon-40b": preset(8192, 128, 60, 32768, num_kv_heads=8, wiring="parallel_split"),
        "falcon-rw-1b": preset(
            2048, 32, 24, 8192, vocab_size=50304, num_kv_heads=32, wiring="pre", position="alibi", **_BIAS
        ),
    },
    tiny=TINY,
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset({"rope_parameters", "rope_theta", "rope_scaling"}),  # read unless alibi
)
