"""GPT-NeoX, also Pythia: rotary positions on a fraction of each head, parallel or sequential sublayers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.decoder import (
    DECODER,
    PAD,
    decoder_heads,
    fused_rows,
    head_rows,
    read_rotary,
    write_rotary,
)
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Key, Options, Rule, activation
from glassformer.families.rows import rename_modules
from glassformer.weights.ops import Ignored, Op


def _read_rotary(config: Config, options: Options) -> dict[str, Any]:
    head_dim = options["d_model"] // options["num_heads"]
    rotary = read_rotary(
        config,
        base=config.get("rotary_emb_base", 10000.0),
        max_len=options["max_len"],
        head_dim=head_dim,
        fraction=config.get("rotary_pct", 0.25),
    )
    fraction = 1.0 if rotary.width is None else rotary.width / head_dim
    if rotary.width is not None and rotary.width % 2:
        expected = "an even number of rotated features per head"
        raise UnsupportedConfigError(config.where, "rotary_pct", fraction, expected)
    return {"rope_base": rotary.base, "rope_scaling": rotary.scaling, "partial_rotary_factor": fraction}


def _write_rotary(options: Options) -> dict[str, Any]:
    rope = write_rotary(options)
    rope["rotary_emb_base"] = rope.pop("rope_theta")
    return {**rope, "rotary_pct": options["partial_rotary_factor"]}


KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("max_position_embeddings", "max_len", 2048),
    activation("hidden_act", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-5),
    Key("attention_bias", default=True),
    Key("hidden_dropout", "dropout", 0.0),
    Key("hidden_dropout", "embed_dropout", 0.0),
    Key("attention_dropout", default=0.0),
    Key("tie_word_embeddings", "tied", False),
    Key("use_parallel_residual", "wiring", True, values={True: "parallel_split", False: "pre"}),
    Rule(("rope_base", "rope_scaling", "partial_rotary_factor"), _read_rotary, _write_rotary),
    PAD,
)


def weight_rows(model: spec.DecoderOnlySpec) -> Sequence[Op]:
    norms = {"input_layernorm": "norm_self", "post_attention_layernorm": "norm_ffn"}
    return (
        *fused_rows(model, "{base}layers.{i}", "attention", norms),
        *rename_modules(("{base}final_layer_norm", "decoder.final_norm")),
        Ignored("{base}layers.*.attention.rotary_emb.inv_freq"),  # computed here; only in older files
        Ignored("{base}layers.*.attention.{bias,masked_bias}"),  # the causal mask, in older files
        *head_rows(model, token="{base}embed_in.weight", output="embed_out.weight", each_token="classifier"),
    )


_PYTHIA = {"vocab_size": 50304}

FAMILY = Family(
    name="gpt_neox",
    builder=DECODER,
    keys=KEYS,
    # the 20B model
    defaults={
        **preset(6144, 64, 44, 24576),
        "vocab_size": 50432,
        "max_len": 2048,
        "wiring": "parallel_split",
        "norm": "layer",
        "activation": "gelu",
        "gated": False,
        "partial_rotary_factor": 0.25,
        "attention_bias": True,
        "ffn_bias": True,
    },
    heads=decoder_heads("GPTNeoX"),
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
    rows=weight_rows,
    prefixes=("gpt_neox.",),
)
