"""Shared by the text encoders: a post-norm encoder and its usual heads."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from glassformer.core import spec
from glassformer.errors import InvalidValueError
from glassformer.families.family import Builder, spec_options
from glassformer.families.keys import Head, Key, Rule, activation, fixed
from glassformer.families.rows import layer_rows, model_prefixes, rename_modules
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Tied

TOKEN = "{base}embeddings.word_embeddings.weight"
Term = Literal["c2p", "p2c"]
Pool = Literal["mean", "first", "max", "mean_sqrt_len", "last"]

KEYS = (
    Key("vocab_size"),
    Key("hidden_size", "d_model"),
    Key("num_attention_heads", "num_heads"),
    Key("intermediate_size", "d_ff"),
    Key("num_hidden_layers", "num_layers"),
    Key("type_vocab_size", "types", 2),
    activation("hidden_act", "gelu"),
    Key("layer_norm_eps", "norm_eps", 1e-12),
    Key("hidden_dropout_prob", "dropout", 0.1),
    Key("attention_probs_dropout_prob", "attention_dropout", 0.1),
    Key("tie_word_embeddings", "tied", True),
    fixed("position_embedding_type", "absolute"),
    fixed("is_decoder", False),
    fixed("add_cross_attention", False),
    Key("pad_token_id", "pad_id", None),
)
MAX_LEN = Key("max_position_embeddings", "max_len")


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
    buckets: int | None = None,
    max_distance: int | None = None,
    terms: tuple[Term, ...] = (),
    position_norm: bool = True,
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
    buckets, max_distance, terms, position_norm: of relative positions in disentangled attention, which there
    is if `terms` are given; max_distance is max_len by default.
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
    relative, scale = None, None
    if terms:
        if buckets is not None and max_distance is None:  # a short model has no distances for more buckets
            buckets = max(4, min(buckets, max_len // 2))
        relative = spec.DisentangledSpec(
            max_distance=max_distance or max_len,
            buckets=buckets,
            terms=terms,
            norm=norm if position_norm else None,
            dropout=dropout,
        )
        scale = (d_model // num_heads * (1 + len(terms))) ** -0.5
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
                attention=spec.AttentionSpec(num_heads=num_heads, scale=scale, dropout=attention_dropout),
                feed_forward=spec.FeedForwardSpec(d_ff=d_ff or 4 * d_model, activation=activation),
                norm=norm,
                wiring="post",
                dropout=dropout,
            ),
            position=relative,
        ),
        head=head,
        tied=("head",) if tied and isinstance(head, spec.MaskedLanguageModelSpec) else (),
        max_len=max_len if position == "none" else None,
        init=spec.NormalSpec(std=0.02),
    )


def _invert(model: Any) -> dict[str, Any]:
    """Return the options of `text_encoder` that give a spec."""
    stack, position = model.encoder, model.input.position
    kinds = {spec.SinusoidalSpec: "sinusoidal", type(None): "none"}
    learned = "after_pad" if getattr(position, "offset", 0) else "learned"
    relative: dict[str, Any] = {"terms": ()}
    if isinstance(stack.position, spec.DisentangledSpec):
        relative = {**vars(stack.position), "position_norm": stack.position.norm is not None}
    return {
        **relative,
        **spec_options(model),
        "embedding_dim": model.input.embedding_dim,
        "num_groups": stack.num_groups,
        "position": kinds.get(type(position), learned),
    }


TEXT_ENCODER = Builder(text_encoder, _invert, shared=True)


# ---- heads ------------------------------------------------------------------------------------------------

DROPOUT = Key("classifier_dropout", "dropout", 0.1, aliases=("hidden_dropout_prob",))
POOLER = Rule(
    ("pooler",),
    lambda config, _: {"pooler": config.has_pooler},
    lambda head: {} if head["pooler"] else {"add_pooling_layer": False},
)


def text_heads(
    stem: str,
    *,
    dropped: tuple[Literal["hidden", "out"], ...],
    hidden: spec.Activation = "tanh",
    pooler: bool = True,
    dropout: Key = DROPOUT,
) -> dict[str, Head]:
    """Return the heads by class name. stem: class name without its suffix.

    dropped, hidden: of the classification head. pooler: whether the bare encoder may have a pooler. dropout:
    of the classification heads.
    """
    return {
        f"{stem}ForMaskedLM": Head(spec.MaskedLanguageModelSpec, from_options=True),
        f"{stem}Model": Head(spec.FeaturesSpec, (POOLER,) if pooler else ()),
        f"{stem}ForSequenceClassification": Head(
            spec.ClassifySpec, (dropout,), {"hidden": hidden, "dropped": dropped}
        ),
        f"{stem}ForTokenClassification": Head(spec.TokenClassifySpec, (dropout,)),
        f"{stem}ForQuestionAnswering": Head(spec.AnswerSpec),
    }


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
    model: Any,
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
    head = model.head
    modules = {**HEADS, **heads}.get(type(head), ())
    if getattr(head, "pooler", False):
        modules = ((pooler, "head.pooler"),)
    stack = model.encoder
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
