"""GPT-2: pre-norm decoder, learned positions, tanh GELU, head tied to the token matrix."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.causal_heads import head_rows
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config, Family, bases, labels_of
from glassformer.weights.convert import Table
from glassformer.weights.ops import Ignored, Op, Rename, Split, Transpose, expand


def gpt2(
    *,
    vocab_size: int = 50257,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int | None = None,
    num_layers: int = 12,
    max_len: int = 1024,
    activation: spec.Activation = "gelu_tanh",
    norm_eps: float = 1e-5,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    embed_dropout: float = 0.1,
    scale: float | None = None,
    pad_id: int | None = None,
    tied: bool = True,
    head: spec.Head | None = None,
) -> spec.DecoderOnly:
    """GPT-2's spec; the defaults are the 124M model's."""
    norm = spec.LayerNorm(eps=norm_eps)
    return spec.DecoderOnly(
        input=spec.Tokens(
            vocab_size=vocab_size,
            position=spec.Learned(max_len=max_len),
            dropout=embed_dropout,
            pad_id=pad_id,
        ),
        decoder=spec.Stack(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.Block(
                attention=spec.Attention(num_heads=num_heads, scale=scale, dropout=attention_dropout),
                feed_forward=spec.FeedForward(d_ff=d_ff or 4 * d_model, activation=activation),
                norm=norm,
                wiring="pre",
                dropout=dropout,
            ),
            causal=True,
            final_norm=norm,
        ),
        head=head or spec.LanguageModel(vocab_size=vocab_size),
        tied=("head",) if tied and head is None else (),
        init=spec.Normal(std=0.02, residual="shrunk"),
    )


def from_config(config: Config) -> spec.DecoderOnly:
    labels, inner = config.num_labels, config.get("n_inner", 0)
    heads: dict[str, spec.Head | None] = {
        "GPT2LMHeadModel": None,
        "GPT2Model": spec.Features(),
        "GPT2ForSequenceClassification": spec.Classify(num_labels=labels, pool="last", bias=False),
        "GPT2ForTokenClassification": spec.TokenClassify(num_labels=labels),
        "GPT2ForQuestionAnswering": spec.Answer(),
    }
    config.only("scale_attn_by_inverse_layer_idx", False, default=False)
    config.only("add_cross_attention", False, default=False)
    config.only("reorder_and_upcast_attn", False, True, default=False)  # a matter of precision alone
    return gpt2(
        vocab_size=config.need("vocab_size", int),
        d_model=config.need("n_embd", int, "hidden_size"),
        num_heads=config.need("n_head", int, "num_attention_heads"),
        num_layers=config.need("n_layer", int, "num_hidden_layers"),
        max_len=config.get("n_positions", 1024, "max_position_embeddings", "n_ctx"),
        d_ff=inner or None,
        activation=config.choose("activation_function", ACTIVATIONS, "gelu_new"),
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        dropout=config.get("resid_pdrop", 0.1),
        attention_dropout=config.get("attn_pdrop", 0.1),
        embed_dropout=config.get("embd_pdrop", 0.1),
        scale=None if config.get("scale_attn_weights", True) else 1.0,
        pad_id=config.maybe("pad_token_id", int),
        tied=config.get("tie_word_embeddings", True),
        head=heads[config.architecture],
    )


def to_config(model: spec.Model) -> dict[str, Any]:
    assert isinstance(model, spec.DecoderOnly) and isinstance(model.input, spec.Tokens)
    stack, attention, ffn = model.decoder, model.decoder.block.attention, model.decoder.block.feed_forward
    architecture = {
        spec.LanguageModel: "GPT2LMHeadModel",
        spec.Features: "GPT2Model",
        spec.Classify: "GPT2ForSequenceClassification",
        spec.TokenClassify: "GPT2ForTokenClassification",
        spec.Answer: "GPT2ForQuestionAnswering",
    }[type(model.head)]
    assert isinstance(model.input.position, spec.Learned) and isinstance(stack.block.norm, spec.LayerNorm)
    return {
        "model_type": "gpt2",
        "architectures": [architecture],
        **labels_of(model.head),
        "vocab_size": model.input.vocab_size,
        "n_embd": stack.d_model,
        "n_head": attention.num_heads,
        "n_layer": stack.num_layers,
        "n_inner": ffn.d_ff,
        "n_positions": model.input.position.max_len,
        "activation_function": PUBLISHED[ffn.activation],
        "layer_norm_epsilon": stack.block.norm.eps,
        "resid_pdrop": stack.block.dropout,
        "attn_pdrop": attention.dropout,
        "embd_pdrop": model.input.dropout,
        "scale_attn_weights": attention.scale is None,
        "pad_token_id": model.input.pad_id,
        "tie_word_embeddings": bool(model.tied) or not isinstance(model.head, spec.LanguageModel),
    }


def table(model: spec.Model, names: Collection[str]) -> Table:
    assert isinstance(model, spec.DecoderOnly)
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
            Ignored("{base}h.*.attn.bias"),  # causal masks that older files carry
            Ignored("{base}h.*.attn.masked_bias"),
        ),
        i=layers,
        p=("weight", "bias"),
    )
    rows += head_rows(model, token="{base}wte.weight", each_token="classifier")
    return Table(rows, base=bases(model.head, "transformer."))


FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    architectures=(
        "GPT2LMHeadModel",
        "GPT2Model",
        "GPT2ForSequenceClassification",
        "GPT2ForTokenClassification",
        "GPT2ForQuestionAnswering",
    ),
    build=gpt2,
    presets={
        "gpt2": {},
        "gpt2-medium": {"d_model": 1024, "num_heads": 16, "num_layers": 24},
        "gpt2-large": {"d_model": 1280, "num_heads": 20, "num_layers": 36},
        "gpt2-xl": {"d_model": 1600, "num_heads": 25, "num_layers": 48},
    },
    tiny={"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
    immaterial=frozenset(
        """summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
        classifier_dropout hidden_dropout""".split()
    ),
)
