"""DeBERTa, versions 2 and 3: BERT with disentangled attention instead of absolute positions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.family import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    TINY,
    Config,
    Family,
    preset,
    rename_modules,
)
from glassformer.families.text_encoder import TASKS, read, read_head, table_of, text_encoder, write
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename

Term = Literal["c2p", "p2c"]
_TERMS: tuple[Term, ...] = ("c2p", "p2c")


def deberta(
    *,
    vocab_size: int = 128100,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int | None = None,
    num_layers: int = 12,
    max_len: int = 512,
    position: Literal["none", "learned"] = "none",
    types: int | None = None,
    activation: spec.Activation = "gelu",
    norm_eps: float = 1e-7,
    dropout: float = 0.1,
    attention_dropout: float = 0.1,
    buckets: int | None = 256,
    max_distance: int | None = None,
    terms: tuple[Term, ...] = _TERMS,
    position_norm: bool = True,
    pad_id: int | None = 0,
    tied: bool = True,
    head: spec.HeadSpec | None = None,
) -> spec.EncoderOnlySpec:
    """Create DeBERTa's spec; the defaults are the base model of version 3.

    position: absolute positions of the input. buckets, max_distance, terms, position_norm: of the relative
    positions; max_distance is max_len by default. Without `head`, the model is a masked language model.
    """
    model = text_encoder(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=num_heads,
        d_ff=d_ff,
        num_layers=num_layers,
        max_len=max_len,
        position=position,
        types=types,
        activation=activation,
        norm_eps=norm_eps,
        dropout=dropout,
        attention_dropout=attention_dropout,
        pad_id=pad_id,
        tied=tied,
        head=head,
    )
    far = max_distance or max_len
    if buckets is not None and max_distance is None:
        buckets = max(4, min(buckets, far // 2))  # a short model has no distances for more buckets
    relative = spec.DisentangledSpec(
        max_distance=far,
        buckets=buckets,
        terms=terms,
        norm=spec.LayerNormSpec(eps=norm_eps) if position_norm else None,
        dropout=dropout,
    )
    assert isinstance(model.encoder, spec.StackSpec)
    block = model.encoder.block
    scale = (d_model // num_heads * (1 + len(terms))) ** -0.5
    block = replace(block, attention=replace(block.attention, scale=scale))
    return replace(model, encoder=replace(model.encoder, block=block, position=relative))


# ---- the published config ---------------------------------------------------------------------------


def with_head(config: Config, head: spec.HeadSpec | None) -> spec.EncoderOnlySpec:
    """Return the encoder of a config with this head; None is the masked-language-model head."""
    config.only("relative_attention", True, default=False)
    config.only("share_att_key", True, default=False)
    config.only("conv_kernel_size", None, 0)
    options = read(config, types=0, norm_eps=1e-7)
    width = options["d_model"]
    config.only("embedding_size", None, width)
    config.only("attention_head_size", None, width // max(1, options["num_heads"]))
    named = config.values.get("pos_att_type")
    named = named.lower().split("|") if isinstance(named, str) else named
    terms = tuple(
        term for term in _TERMS if isinstance(named, list) and term in [str(n).strip() for n in named]
    )
    if not terms:
        config.only("pos_att_type", "c2p|p2c", "c2p", "p2c")
    norms = [name.strip() for name in config.get("norm_rel_ebd", "none").lower().split("|")]
    max_len, buckets = config.need("max_position_embeddings", int), config.get("position_buckets", -1)
    far = config.get("max_relative_positions", -1)
    config.read.add("pos_att_type")
    return deberta(
        **{**options, "types": options["types"] or None},
        max_len=max_len,
        position="learned" if config.get("position_biased_input", True) else "none",
        buckets=buckets if buckets > 0 else None,
        max_distance=far if far > 0 else max_len,
        terms=terms,
        position_norm="layer_norm" in norms,
        pad_id=config.maybe("pad_token_id", int),
        head=head,
    )


def from_config(config: Config) -> spec.EncoderOnlySpec:
    task = config.architecture.removeprefix("DebertaV2")
    dropout = config.get("hidden_dropout_prob", 0.1)
    hidden = "gelu" if task != "ForSequenceClassification" else _pooler(config)
    if task == "ForSequenceClassification":
        dropout = config.get("cls_dropout", dropout)
    head = read_head(config, task, dropped=("out",), hidden=hidden, pooler=False, dropout=dropout)
    if task == "ForMaskedLM" and not config.get("legacy", True):
        config.only("tie_word_embeddings", True, default=True)
        if config.names and f"{_NEWER}.bias" not in config.names:
            config.only("legacy", True)  # the tensors have the older names, as they are always saved
    return with_head(config, head)


def _pooler(config: Config) -> spec.Activation:
    """Return the activation of the classification head's dense layer."""
    config.only("pooler_dropout", 0, default=0)
    width = config.need("hidden_size", int)
    config.only("pooler_hidden_size", None, width)
    return config.choose("pooler_hidden_act", ACTIVATIONS, "gelu")


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    assert isinstance(model.encoder, spec.StackSpec)
    head, relative = model.head, model.encoder.position
    assert isinstance(relative, spec.DisentangledSpec)
    config = write(model, "deberta-v2", "DebertaV2")
    config.pop("classifier_dropout", None)
    if isinstance(head, spec.ClassifySpec):
        assert head.hidden is not None
        config["pooler_hidden_act"] = ACTIVATION_NAMES[head.hidden]
        config |= {"cls_dropout": head.dropout, "pooler_dropout": 0}
    return {
        **config,
        "type_vocab_size": model.input.types or 0,
        "position_biased_input": model.input.position is not None,
        "relative_attention": True,
        "share_att_key": True,
        "pos_att_type": list(relative.terms),
        "position_buckets": relative.buckets or -1,
        "max_relative_positions": relative.max_distance,
        "norm_rel_ebd": "none" if relative.norm is None else "layer_norm",
    }


# ---- the published tensors --------------------------------------------------------------------------

_LAYER = {
    "attention.self.{query,key,value}_proj": "self_attn.{q,k,v}_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm_self",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
    "output.LayerNorm": "norm_ffn",
}
_OLDER, _NEWER = "cls.predictions.transform", "lm_predictions.lm_head"


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderOnlySpec) and isinstance(model.input, spec.TokensSpec)
    assert isinstance(model.encoder, spec.StackSpec)
    relative = model.encoder.position
    assert isinstance(relative, spec.DisentangledSpec)
    newer = f"{_NEWER}.dense.weight" in names
    embeddings: tuple[Op, ...] = (Rename("{base}encoder.rel_embeddings.weight", "encoder.position.weight"),)
    if relative.norm is not None:
        embeddings += rename_modules(("{base}encoder.LayerNorm", "encoder.position.norm"))
    for name, present in (("position", model.input.position), ("token_type", model.input.types)):
        ours = {"position": "embed.position", "token_type": "embed.kind"}[name]
        if present is not None:
            embeddings += (Rename(f"{{base}}embeddings.{name}_embeddings.weight", f"{ours}.weight"),)
    if not isinstance(model.head, spec.MaskedLanguageModelSpec):
        embeddings += (Ignored(("lm_predictions.*", "cls.*")),)
    embeddings += (Ignored("mask_predictions.*"),)
    transform = _NEWER if newer else _OLDER
    return table_of(
        model,
        names,
        base="deberta.",
        heads={
            spec.MaskedLanguageModelSpec: (
                (f"{transform}.dense", "head.dense"),
                (f"{transform}.LayerNorm", "head.norm"),
            ),
            spec.ClassifySpec: (("pooler.dense", "head.dense"), ("classifier", "head.out")),
        },
        matrix="cls.predictions.decoder.weight",
        biases=(f"{_NEWER}.bias",) if newer else ("cls.predictions.bias", "cls.predictions.decoder.bias"),
        layer=_LAYER,
        embeddings=embeddings,
    )


FAMILY = Family(
    name="deberta",
    model_types=("deberta-v2",),
    architectures=tuple(f"DebertaV2{task}" for task in TASKS.values()),
    build=deberta,
    presets={
        "deberta-v3-base": {},
        "deberta-v3-xsmall": preset(384, 6, 12, 1536),
        "deberta-v3-small": {"num_layers": 6},
        "deberta-v3-large": preset(1024, 16, 24, 4096),
        "mdeberta-v3-base": {"vocab_size": 251000},
    },
    tiny={**TINY, "buckets": 8},
    from_config=from_config,
    to_config=to_config,
    table=table,
    bare_architecture="DebertaV2Model",
    # read by some heads only
    ignored_keys=frozenset({"pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "legacy"}),
)
