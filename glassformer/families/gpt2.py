"""GPT-2: pre-norm decoder with learned positions, tanh GELU and a head tied to the token matrix."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.core import spec
from glassformer.families.decoder import DECODER, decoder_heads, head_rows
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Key, activation, fixed
from glassformer.weights.ops import Ignored, Op, Rename, Split, Transpose, expand

KEYS = (
    Key("vocab_size"),
    Key("n_embd", "d_model", aliases=("hidden_size",)),
    Key("n_head", "num_heads", aliases=("num_attention_heads",)),
    Key("n_layer", "num_layers", aliases=("num_hidden_layers",)),
    Key("n_inner", "d_ff", 0),
    Key("n_positions", "max_len", 1024, aliases=("max_position_embeddings", "n_ctx")),
    activation("activation_function", "gelu_new"),
    Key("layer_norm_epsilon", "norm_eps", 1e-5),
    Key("resid_pdrop", "dropout", 0.1),
    Key("attn_pdrop", "attention_dropout", 0.1),
    Key("embd_pdrop", "embed_dropout", 0.1),
    Key("tie_word_embeddings", "tied", True),
    Key("scale_attn_weights", "scale", True, values={True: None, False: 1.0}),
    Key("pad_token_id", "pad_id", None),
    fixed("scale_attn_by_inverse_layer_idx", False),
    fixed("add_cross_attention", False),
    fixed("reorder_and_upcast_attn", False, True),  # affects only the precision
)


def weight_rows(model: spec.DecoderOnlySpec) -> Sequence[Op]:
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
    return rows


FAMILY = Family(
    name="gpt2",
    builder=DECODER,
    keys=KEYS,
    # the 124M model
    defaults={
        "d_model": 768,
        "num_heads": 12,
        "num_layers": 12,
        "vocab_size": 50257,
        "max_len": 1024,
        "norm": "layer",
        "activation": "gelu_tanh",
        "gated": False,
        "position": "learned",
        "attention_bias": True,
        "ffn_bias": True,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "embed_dropout": 0.1,
        "tied": True,
        "init": spec.NormalSpec(std=0.02, residual="shrunk"),
    },
    heads=decoder_heads("GPT2", causal_lm="LMHeadModel"),
    presets={
        "gpt2": {},
        "gpt2-medium": preset(1024, 16, 24, 4096),
        "gpt2-large": preset(1280, 20, 36, 5120),
        "gpt2-xl": preset(1600, 25, 48, 6400),
    },
    tiny=TINY,
    rows=weight_rows,
    prefixes=("transformer.",),
)
