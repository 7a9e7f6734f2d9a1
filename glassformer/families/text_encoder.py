"""Shared by the text encoders: a post-norm encoder and its usual heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.family import (
    Config,
    Key,
    label_config,
    layer_rows,
    model_prefixes,
    read_options,
    rename_modules,
    spec_options,
    write_options,
)
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Tied

TOKEN = "{base}embeddings.word_embeddings.weight"
Pool = Literal["mean", "first", "max", "mean_sqrt_len", "last"]

# suffix of the published class name, after the family's prefix
TASKS: dict[type, str] = {
    spec.MaskedLanguageModelSpec: "ForMaskedLM",
    spec.FeaturesSpec: "Model",
    spec.ClassifySpec: "ForSequenceClassification",
    spec.TokenClassifySpec: "ForTokenClassification",
    spec.AnswerSpec: "ForQuestionAnswering",
}
KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("type_vocab_size", "types", 2),
    Key("hidden_act", "activation", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-12),
    Key("hidden_dropout_prob", "dropout", 0.1),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("tie_word_embeddings", "tied", True),
)


def text_encoder(
    *,
    vocab_size: int = 30522,
    embedding_dim: int | None = None,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int | None = None,
    num_layers: int = 12,
    num_groups: int | None = None,
    max_len: int = 512,
    position: Literal["learned", "after_pad", "sinusoidal", "none"] = "learned",
    types: int | None = 2,
    activation: spec.Activation = "gelu",
    mlm_activation: spec.Activation | None = None,
    norm_eps: float = 1e-12,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    pad_id: int | None = 0,
    tied: bool = True,
    pool: Pool | None = None,
    normalize: bool = False,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create the spec of a post-norm text encoder; the defaults are BERT-Base.

    position: "after_pad" is a learned table whose first position is in row `pad_id + 1`. pool: pool the
    hidden states to one embedding per text. Without `pool` or `head`, the model is a masked language model;
    `mlm_activation` is the activation of its dense layer. embedding_dim: width of the token embeddings, if a
    dense layer projects them to d_model. num_groups: number of groups of layers that share parameters.
    """
    norm = spec.LayerNormSpec(eps=norm_eps)
    positions: dict[str, spec.InputPositionSpec | None] = {
        "learned": spec.LearnedSpec(max_len=max_len),
        "after_pad": spec.LearnedSpec(max_len=max_len, offset=(pad_id or 0) + 1),
        "sinusoidal": spec.SinusoidalSpec(max_len=max_len),
        "none": None,
    }
    if position not in positions:
        raise InvalidValueError("position", position, f"one of {', '.join(positions)}")
    if head is None and pool is not None:
        head = spec.EmbedSpec(pool=pool, normalize=normalize)
    elif head is None:
        head = spec.MaskedLanguageModelSpec(
            vocab_size=vocab_size,
            hidden_dim=embedding_dim,
            activation=mlm_activation or activation,
            norm=norm,
        )
    return spec.EncoderOnlySpec(
        input=spec.TokensSpec(
            vocab_size=vocab_size,
            embedding_dim=embedding_dim,
            position=positions[position],
            types=types,
            norm=norm,
            dropout=dropout,
            pad_id=pad_id,
        ),
        encoder=spec.StackSpec(
            d_model=d_model,
            num_layers=num_layers,
            num_groups=num_groups,
            block=spec.BlockSpec(
                attention=spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout),
                feed_forward=spec.FeedForwardSpec(d_ff=d_ff or 4 * d_model, activation=activation),
                norm=norm,
                wiring="post",
                dropout=dropout,
            ),
        ),
        head=head,
        tied=("head",) if tied and isinstance(head, spec.MaskedLanguageModelSpec) else (),
        max_len=max_len if position == "none" else None,
        init=spec.NormalSpec(std=0.02),
    )


# ---- the published config ---------------------------------------------------------------------------


def read(config: Config, **defaults: Any) -> dict[str, Any]:
    """Read the options of a config with BERT's keys. `defaults` override BERT's."""
    config.only("position_embedding_type", "absolute", default="absolute")
    config.only("is_decoder", False, default=False)
    config.only("add_cross_attention", False, default=False)
    return read_options(config, KEYS, **defaults)


def read_head(
    config: Config,
    task: str,
    *,
    dropped: tuple[Literal["hidden", "out"], ...],
    hidden: spec.Activation = "tanh",
    pooler: bool = True,
    dropout: float | None = None,
) -> spec.HeadSpec | None:
    """Return the head by the suffix of the published class name; None is the masked-language-model head.

    dropped, hidden: of the classification head. pooler: whether the bare encoder may have a pooler. dropout:
    of the classification heads, by default from the config.
    """
    if dropout is None:
        dropout = config.get("classifier_dropout", config.get("hidden_dropout_prob", 0.1))
    match task:
        case "Model":
            return spec.FeaturesSpec(pooler=pooler and config.has_pooler)
        case "ForSequenceClassification":
            return spec.ClassifySpec(
                num_labels=config.num_labels, hidden=hidden, dropout=dropout, dropped=dropped
            )
        case "ForTokenClassification":
            return spec.TokenClassifySpec(num_labels=config.num_labels, dropout=dropout)
        case "ForQuestionAnswering":
            return spec.AnswerSpec()
        case _:
            return None


def write(
    model: spec.ModelSpec, model_type: str, stem: str, *, tasks: Mapping[type, str] = TASKS
) -> dict[str, Any]:
    """Return the published config of a spec; the inverse of `read` and `read_head`."""
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    head, offset = model.head, getattr(model.input.position, "offset", 0)
    config = {
        "model_type": model_type,
        "architectures": [f"{stem}{tasks[type(head)]}"],
        "max_position_embeddings": spec_options(model)["max_len"] + offset,
        **write_options(model, KEYS),
        "pad_token_id": spec_options(model)["pad_id"],
        **label_config(head),
    }
    if isinstance(head, spec.ClassifySpec | spec.TokenClassifySpec):
        config["classifier_dropout"] = head.dropout
    if isinstance(head, spec.FeaturesSpec) and not head.pooler:
        config["add_pooling_layer"] = False
    return config


# ---- the published tensors --------------------------------------------------------------------------

EMBEDDINGS: tuple[Op, ...] = (
    Rename("{base}embeddings.position_embeddings.weight", "embed.position.weight"),
    Rename("{base}embeddings.token_type_embeddings.weight", "embed.kind.weight"),
    Ignored("{base}embeddings.token_type_ids"),  # zeros, in older files
)
LAYER = {
    "attention.self.{query,key,value}": "self_attn.{q,k,v}_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm_self",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
    "output.LayerNorm": "norm_ffn",
}
HEADS: dict[type, tuple[tuple[str, str], ...]] = {
    spec.TokenClassifySpec: (("classifier", "head.out"),),
    spec.AnswerSpec: (("qa_outputs", "head.out"),),
}


def table_of(
    model: spec.ModelSpec,
    names: Collection[str],
    *,
    base: str,
    heads: Mapping[type, tuple[tuple[str, str], ...]],
    matrix: str,
    biases: tuple[str, ...],
    layer: Mapping[str, str] = LAYER,
    layers: str = "encoder.layer.{i}",
    embeddings: tuple[Op, ...] = EMBEDDINGS,
    projection: str = "",
    pooler: str = "{base}pooler.dense",
) -> WeightTable:
    """Return the weight table. heads: module names of each head, published and Glassformer's.

    matrix, biases: published names of the weight and bias of the vocabulary projection. layers: published
    name of layer (or group of layers) i. projection: of the dense layer after the embeddings.
    """
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    head = model.head
    modules = {**HEADS, **heads}.get(type(head), ())
    if getattr(head, "pooler", False):
        modules = ((pooler, "head.pooler"),)
    stack = model.encoder
    assert isinstance(stack, spec.StackSpec)
    first = {stack.group_of(n): n for n in reversed(range(stack.num_layers))}  # first layer of each group
    rows = embeddings
    for group, n in sorted(first.items()):
        theirs = f"{{base}}{layers}".replace("{i}", str(group))
        rows += layer_rows(theirs, f"encoder.blocks.{n}", 1, layer)
    modules = (("{base}embeddings.LayerNorm", "embed.norm"), *modules)
    if model.input.embedding_dim is not None:
        modules += ((projection, "embed.project"),)
    rows += (
        *rename_modules(*modules),
        Ignored("{base}embeddings.position_ids"),
    )  # 0, 1, 2, ... in older files
    if not any(theirs.startswith("{base}pooler") for theirs, _ in modules):
        rows += (
            Ignored(("{base}pooler.*", "cls.seq_relationship.*", "sop_classifier.*")),
        )  # unused by this head
    if isinstance(head, spec.MaskedLanguageModelSpec):
        rows += _vocabulary(model, names, matrix, biases)
    else:
        rows += (Rename(TOKEN, "embed.token.weight"),)
    return WeightTable(rows, base=model_prefixes(head, base))


def _vocabulary(
    model: spec.EncoderOnlySpec, names: Collection[str], matrix: str, biases: tuple[str, ...]
) -> tuple[Op, ...]:
    """Return the operations of the token matrix and of the vocabulary projection's weight and bias.

    The bias may be published under two names. If the matrix is tied, they are one tensor. If not, newer files
    have two tensors, and only the second one affects the logits.
    """
    if model.tied:
        return (Tied((TOKEN, matrix), "embed.token.weight"), Tied(biases, "head.bias"))
    apart = (Rename(TOKEN, "embed.token.weight"), Rename(matrix, "head.weight"))
    if len(biases) > 1 and biases[1] in names:
        return (*apart, Rename(biases[1], "head.bias"), Ignored(biases[0]))
    return (*apart, Tied(biases, "head.bias", save_as=biases))
