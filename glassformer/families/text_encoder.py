"""The post-norm encoder of text and its usual heads: what several published families share."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.family import ACTIVATIONS, PUBLISHED, Config, labels_of
from glassformer.weights.ops import Ignored, Op, Rename, Tied, expand

TOKEN = "{base}embeddings.word_embeddings.weight"

# how a published class name goes on after the family's prefix
TASKS: dict[type, str] = {
    spec.MaskedLanguageModel: "ForMaskedLM",
    spec.Features: "Model",
    spec.Classify: "ForSequenceClassification",
    spec.TokenClassify: "ForTokenClassification",
    spec.Answer: "ForQuestionAnswering",
}


def text_encoder(
    *,
    vocab_size: int,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_layers: int,
    position: spec.AddedPosition,
    types: int | None,
    activation: spec.Activation,
    norm_eps: float,
    dropout: float,
    attention_dropout: float,
    pad_id: int | None,
    tied: bool,
    head: spec.Head,
) -> spec.EncoderOnly:
    """Tokens, positions (and types) summed and normed, post-norm blocks, a head."""
    norm = spec.LayerNorm(eps=norm_eps)
    return spec.EncoderOnly(
        input=spec.Tokens(
            vocab_size=vocab_size, position=position, types=types, norm=norm, dropout=dropout, pad_id=pad_id
        ),
        encoder=spec.Stack(
            d_model=d_model,
            num_layers=num_layers,
            block=spec.Block(
                attention=spec.Attention(num_heads=num_heads, dropout=attention_dropout),
                feed_forward=spec.FeedForward(d_ff=d_ff, activation=activation),
                norm=norm,
                wiring="post",
                dropout=dropout,
            ),
        ),
        head=head,
        tied=("head",) if tied and isinstance(head, spec.MaskedLanguageModel) else (),
        init=spec.Normal(std=0.02),
    )


# ---- the published config ---------------------------------------------------------------------------


def words_of(config: Config) -> dict[str, Any]:
    """The words of ours that a config with BERT's keys gives."""
    config.only("position_embedding_type", "absolute", default="absolute")
    config.only("is_decoder", False, default=False)
    config.only("add_cross_attention", False, default=False)
    return {
        "vocab_size": config.need("vocab_size", int),
        "d_model": config.need("hidden_size", int),
        "num_heads": config.need("num_attention_heads", int),
        "d_ff": config.need("intermediate_size", int),
        "num_layers": config.need("num_hidden_layers", int),
        "types": config.get("type_vocab_size", 2),
        "activation": config.choose("hidden_act", ACTIVATIONS, "gelu"),
        "norm_eps": config.get("layer_norm_eps", 1e-12),
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
        "tied": config.get("tie_word_embeddings", True),
    }


def head_of(config: Config, task: str, dropped: tuple[Literal["hidden", "out"], ...]) -> spec.Head | None:
    """The head of a published class by the end of its name; None is the family's masked language model."""
    dropout = config.get("classifier_dropout", config.get("hidden_dropout_prob", 0.1))
    match task:
        case "Model":
            return spec.Features(pooler=config.has_pooler)
        case "ForSequenceClassification":
            return spec.Classify(
                num_labels=config.num_labels, hidden="tanh", dropout=dropout, dropped=dropped
            )
        case "ForTokenClassification":
            return spec.TokenClassify(num_labels=config.num_labels, dropout=dropout)
        case "ForQuestionAnswering":
            return spec.Answer()
        case _:
            return None


def config_of(model: spec.EncoderOnly) -> dict[str, Any]:
    """What `words_of` and `head_of` read, written."""
    assert isinstance(model.input, spec.Tokens) and isinstance(model.encoder.block.norm, spec.LayerNorm)
    stack, block, head = model.encoder, model.encoder.block, model.head
    config: dict[str, Any] = {
        "vocab_size": model.input.vocab_size,
        "hidden_size": stack.d_model,
        "num_attention_heads": block.attention.num_heads,
        "intermediate_size": block.feed_forward.d_ff,
        "num_hidden_layers": stack.num_layers,
        "type_vocab_size": model.input.types,
        "hidden_act": PUBLISHED[block.feed_forward.activation],
        "layer_norm_eps": block.norm.eps,
        "hidden_dropout_prob": block.dropout,
        "attention_probs_dropout_prob": block.attention.dropout,
        "pad_token_id": model.input.pad_id,
        "tie_word_embeddings": tie_of(model),
        **labels_of(head),
    }
    if isinstance(head, spec.Classify | spec.TokenClassify):
        config["classifier_dropout"] = head.dropout
    if isinstance(head, spec.Features) and not head.pooler:
        config["add_pooling_layer"] = False
    return config


def tie_of(model: spec.EncoderOnly) -> bool:
    """What to write for the tying of the token matrix: true, too, where no head could share it."""
    return bool(model.tied) or not isinstance(model.head, spec.MaskedLanguageModel)


# ---- the published tensors --------------------------------------------------------------------------


def body_rows(layers: int) -> tuple[Op, ...]:
    """Embeddings (but the token matrix) and blocks under BERT's names."""
    block = "{base}encoder.layer.{i}."
    return expand(
        (
            Rename("{base}embeddings.position_embeddings.weight", "embed.position.weight"),
            Rename("{base}embeddings.token_type_embeddings.weight", "embed.kind.weight"),
            Rename("{base}embeddings.LayerNorm.{p}", "embed.norm.{p}"),
            Rename(
                block + "attention.self.{query,key,value}.{p}",
                "encoder.blocks.{i}.self_attn.{q,k,v}_proj.{p}",
            ),
            Rename(block + "attention.output.dense.{p}", "encoder.blocks.{i}.self_attn.out_proj.{p}"),
            Rename(block + "attention.output.LayerNorm.{p}", "encoder.blocks.{i}.norm_self.{p}"),
            Rename(block + "intermediate.dense.{p}", "encoder.blocks.{i}.ffn.up.{p}"),
            Rename(block + "output.dense.{p}", "encoder.blocks.{i}.ffn.down.{p}"),
            Rename(block + "output.LayerNorm.{p}", "encoder.blocks.{i}.norm_ffn.{p}"),
            Ignored("{base}embeddings.position_ids"),  # 0, 1, 2, ..., which older files carry
            Ignored("{base}embeddings.token_type_ids"),  # and zeros
        ),
        i=layers,
        p=("weight", "bias"),
    )


def renamed(*pairs: tuple[str, str]) -> tuple[Op, ...]:
    """Weight and bias of each published module -> of ours."""
    rows = tuple(Rename(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in pairs)
    return expand(rows, p=("weight", "bias"))


def vocabulary_rows(model: spec.EncoderOnly, names: Collection[str], head: str) -> tuple[Op, ...]:
    """The token matrix, the matrix and the bias of a masked language model's last layer.

    The bias is published twice, `{head}bias` and `{head}decoder.bias`. They are one tensor where the matrix
    is tied; where it is not, newer files hold two and only the second takes part in the scores.
    """
    bias, used = f"{head}bias", f"{head}decoder.bias"
    if model.tied:
        return (
            Tied((TOKEN, f"{head}decoder.weight"), "embed.token.weight"),
            Tied((bias, used), "head.bias"),
        )
    apart = (Rename(TOKEN, "embed.token.weight"), Rename(f"{head}decoder.weight", "head.weight"))
    if used in names:
        return (*apart, Rename(used, "head.bias"), Ignored(bias))
    return (*apart, Tied((bias, used), "head.bias", written=(bias, used)))
