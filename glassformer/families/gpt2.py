"""GPT-2: pre-norm decoder with learned positions, tanh GELU and a head tied to the token matrix."""

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
    write_head,
)
from glassformer.families.family import (
    TINY,
    Config,
    Family,
    Key,
    model_prefixes,
    preset,
    read_options,
    spec_options,
    variant,
    write_options,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Split, Transpose, expand

# the 124M model
gpt2 = variant(
    decoder,
    f"""num_kv_heads head_dim window window_layers wiring norm gated position rope_base rope_scaling
    {RARE_OPTIONS} attention_bias qkv_bias ffn_bias qk_norm logit_scale init""",
    vocab_size=50257,
    d_model=768,
    num_heads=12,
    num_layers=12,
    max_len=1024,
    norm="layer",
    activation="gelu_tanh",
    gated=False,
    position="learned",
    attention_bias=True,
    ffn_bias=True,
    dropout=0.1,
    attention_dropout=0.1,
    embed_dropout=0.1,
    tied=True,
    init=spec.NormalSpec(std=0.02, residual="shrunk"),
)
KEYS = (
    Key("vocab_size"),
    Key("n_embd", "d_model", aliases=("hidden_size",)),
    Key("n_head", "num_heads", aliases=("num_attention_heads",)),
    Key("n_layer", "num_layers", aliases=("num_hidden_layers",)),
    Key("n_inner", "d_ff", 0),
    Key("n_positions", "max_len", 1024, aliases=("max_position_embeddings", "n_ctx")),
    Key("activation_function", "activation", "gelu_new"),
    Key("layer_norm_epsilon", "norm_eps", 1e-5),
    Key("resid_pdrop", "dropout", 0.1),
    Key("attn_pdrop", "attention_dropout", 0.1),
    Key("embd_pdrop", "embed_dropout", 0.1),
    Key("tie_word_embeddings", "tied", True),
)


def from_config(config: Config) -> spec.DecoderOnlySpec:
    config.only("scale_attn_by_inverse_layer_idx", False, default=False)
    config.only("add_cross_attention", False, default=False)
    config.only("reorder_and_upcast_attn", False, True, default=False)  # affects only the precision
    return gpt2(
        **read_options(config, KEYS),
        scale=None if config.get("scale_attn_weights", True) else 1.0,
        pad_id=config.maybe("pad_token_id", int),
        head=read_head(config, "GPT2"),
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    assert isinstance(model.input.position, spec.LearnedSpec)
    config = {
        "model_type": "gpt2",
        **write_head(model.head, "GPT2"),
        **write_options(model, KEYS),
        "scale_attn_weights": model.decoder.block.attention.scale is None,
        "pad_token_id": spec_options(model)["pad_id"],
    }
    if isinstance(model.head, spec.LanguageModelSpec):
        config["architectures"] = ["GPT2LMHeadModel"]
    return config


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.DecoderOnlySpec)
    width, layers = model.decoder.d_model, model.decoder.num_layers
    rows: tuple[Op, ...] = expand(
        (
            Rename("{base}wpe.weight", "embed.position.weight"),
            Rename("{base}h.{i}.ln_1.{p}", "decoder.blocks.{i}.norm_self.{p}"),
            Split(
                "{base}h.{i}.attn.c_attn.{p}",
                "decoder.blocks.{i}.self_attn.{q,k,v}_proj.{p}",
                sizes=(width, width, width),
                transpose=True,
            ),
            Transpose("{base}h.{i}.attn.c_proj.{p}", "decoder.blocks.{i}.self_attn.out_proj.{p}"),
            Rename("{base}h.{i}.ln_2.{p}", "decoder.blocks.{i}.norm_ffn.{p}"),
            Transpose("{base}h.{i}.mlp.c_fc.{p}", "decoder.blocks.{i}.ffn.up.{p}"),
            Transpose("{base}h.{i}.mlp.c_proj.{p}", "decoder.blocks.{i}.ffn.down.{p}"),
            Rename("{base}ln_f.{p}", "decoder.final_norm.{p}"),
            Ignored("{base}h.*.attn.bias"),  # causal masks, in older files
            Ignored("{base}h.*.attn.masked_bias"),
        ),
        i=layers,
        p=("weight", "bias"),
    )
    rows += head_rows(model, token="{base}wte.weight", each_token="classifier")
    return WeightTable(rows, base=model_prefixes(model.head, "transformer."))


FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    architectures=("GPT2LMHeadModel", *architectures("GPT2")[1:]),
    build=gpt2,
    presets={
        "gpt2": {},
        "gpt2-medium": preset(1024, 16, 24, 4096),
        "gpt2-large": preset(1280, 20, 36, 5120),
        "gpt2-xl": preset(1600, 25, 48, 6400),
    },
    tiny=TINY,
    from_config=from_config,
    to_config=to_config,
    table=table,
    ignored_keys=frozenset(
        """summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        hidden_dropout""".split()
    ),
)
