"""GPT-NeoX, also Pythia: rotary positions on a fraction of each head, parallel or sequential sublayers.

Published files fuse query, key and value rows by head: H times [query head, key head, value head].
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
    UnsupportedConfigError,
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
from glassformer.weights.ops import Ignored, Op, SplitGroups, expand

# the 20B model
gpt_neox = variant(
    decoder,
    f"""num_kv_heads head_dim window window_layers norm gated position qkv_bias ffn_bias qk_norm scale
    embed_dropout logit_scale init {RARE_OPTIONS.replace("partial_rotary_factor", "")}""",
    **preset(6144, 64, 44, 24576),
    vocab_size=50432,
    max_len=2048,
    wiring="parallel_split",
    norm="layer",
    activation="gelu",
    gated=False,
    partial_rotary_factor=0.25,
    attention_bias=True,
    ffn_bias=True,
)
KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 2048),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-5),
    Key("attention_bias", default=True),
    Key("hidden_dropout", "dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("tie_word_embeddings", "tied", False),
)


def from_config(config: Config) -> spec.DecoderOnlySpec:
    options = read_options(config, KEYS)
    head_dim = options["d_model"] // options["num_heads"]
    rotary = read_rotary(
        config,
        base=config.get("rotary_emb_base", 10000.0),
        max_len=options["max_len"],
        head_dim=head_dim,
        fraction=config.get("rotary_pct", 0.25),
    )
    if rotary.width is not None and rotary.width % 2:
        expected = "an even number of rotated features per head"
        raise UnsupportedConfigError(config.where, "rotary_pct", rotary.width / head_dim, expected)
    head = read_head(config, "GPTNeoX")
    return gpt_neox(
        **options,
        wiring="parallel_split" if config.get("use_parallel_residual", True) else "pre",
        rope_base=rotary.base,
        rope_scaling=rotary.scaling,
        partial_rotary_factor=1.0 if rotary.width is None else rotary.width / head_dim,
        embed_dropout=options["dropout"],
        pad_id=read_pad(config, head),
        head=head,
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnlySpec) and isinstance(model.decoder.position, spec.RotarySpec)
    options, rotary = spec_options(model), model.decoder.position
    rope = write_rotary(rotary)
    return {
        "model_type": "gpt_neox",
        **write_head(model.head, "GPTNeoX"),
        **write_options(model, KEYS),
        "use_parallel_residual": {"parallel_split": True, "pre": False}[model.decoder.block.wiring],
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": 1.0 if rotary.width is None else rotary.width / options["head_dim"],
        "rope_scaling": rope["rope_scaling"],
        "pad_token_id": options["pad_id"],
    }


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.DecoderOnlySpec)
    stack, attention = model.decoder, model.decoder.block.attention
    theirs, ours = "{base}layers.{i}", "decoder.blocks.{i}"
    parts = ("weight", "bias") if attention.biases else ("weight",)
    modules = {
        "input_layernorm": "norm_self",
        "post_attention_layernorm": "norm_ffn",
        "mlp.dense_h_to_4h": "ffn.up",
        "mlp.dense_4h_to_h": "ffn.down",
    }
    fused = SplitGroups(
        f"{theirs}.attention.query_key_value.{{a}}",
        f"{ours}.self_attn.{{q,k,v}}_proj.{{a}}",
        groups=attention.num_heads,
        queries=1,
        head_dim=stack.d_model // attention.num_heads,
    )
    rows: tuple[Op, ...] = (
        *layer_rows(theirs, ours, stack.num_layers, modules),
        *expand((fused,), i=stack.num_layers, a=parts),
        *layer_rows(theirs, ours, stack.num_layers, {"attention.dense": "self_attn.out_proj"}, parts),
        *rename_modules(("{base}final_layer_norm", "decoder.final_norm")),
        Ignored("{base}layers.*.attention.rotary_emb.inv_freq"),  # computed here; only in older files
        Ignored("{base}layers.*.attention.{bias,masked_bias}"),  # the causal mask, in older files
        *head_rows(model, token="{base}embed_in.weight", output="embed_out.weight", each_token="classifier"),
    )
    return WeightTable(rows, base=model_prefixes(model.head, "gpt_neox."))


_PYTHIA = {"vocab_size": 50304}

FAMILY = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    architectures=architectures("GPTNeoX"),
    build=gpt_neox,
    presets={
        "gpt-neox-20b": {},
        "pythia-70m": preset(512, 8, 6, 2048, **_PYTHIA),
        "pythia-160m": preset(768, 12, 12, 3072, **_PYTHIA),
        "pythia-410m": preset(1024, 16, 24, 4096, **_PYTHIA),
        "pythia-1b": preset(2048, 8, 16, 8192, **_PYTHIA),
        "pythia-1.4b": preset(2048, 16, 24, 8192, **_PYTHIA),
        "pythia-2.8b": preset(2560, 32, 32, 10240, **_PYTHIA),
        "pythia-6.9b": preset(4096, 32, 32, 16384, vocab_size=50432),
        "pythia-12b": preset(5120, 40, 36, 20480, vocab_size=50688),
    },
    tiny={**TINY, "d_ff": 64, "partial_rotary_factor": 0.5},
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset({"is_decoder"}),
)
