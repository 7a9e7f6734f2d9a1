"""DeBERTa, versions 2 and 3: BERT with disentangled attention instead of absolute positions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Head, Key, Options, Rule, activation, fixed, with_defaults
from glassformer.families.rows import rename_modules
from glassformer.families.text_encoder import KEYS as TEXT_KEYS
from glassformer.families.text_encoder import MAX_LEN, TEXT_ENCODER, table_of, text_heads
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename

# ---- the published config ---------------------------------------------------------------------------

_NEWER = "lm_predictions.lm_head"


def _check_sizes(config: Config, options: Options) -> dict[str, Any]:
    width = options["d_model"]
    config.only("embedding_size", None, width)
    config.only("attention_head_size", None, width // max(1, options["num_heads"]))
    if config.architecture.endswith("ForMaskedLM") and not config.get("legacy", True):
        config.only("tie_word_embeddings", True, default=True)
        if config.names and f"{_NEWER}.bias" not in config.names:
            config.only("legacy", True)  # the tensors have the older names, as they are always saved
    return {}


def _read_relative(config: Config, options: Options) -> dict[str, Any]:
    named = config.values.get("pos_att_type")
    named = named.lower().split("|") if isinstance(named, str) else named
    terms = tuple(
        term for term in ("c2p", "p2c") if isinstance(named, list) and term in [str(n).strip() for n in named]
    )
    if not terms:
        config.only("pos_att_type", "c2p|p2c", "c2p", "p2c")
    norms = [name.strip() for name in config.get("norm_rel_ebd", "none").lower().split("|")]
    buckets, far = config.get("position_buckets", -1), config.get("max_relative_positions", -1)
    return {
        "terms": terms,
        "position_norm": "layer_norm" in norms,
        "buckets": buckets if buckets > 0 else None,
        "max_distance": far if far > 0 else options["max_len"],
    }


def _write_relative(options: Options) -> dict[str, Any]:
    return {
        "pos_att_type": list(options["terms"]),
        "position_buckets": options["buckets"] or -1,
        "max_relative_positions": options["max_distance"],
        "norm_rel_ebd": "layer_norm" if options["position_norm"] else "none",
    }


def _check_pooler(config: Config, options: Options) -> dict[str, Any]:
    config.only("pooler_hidden_size", None, config.need("hidden_size", int))
    return {}


_DROPOUT = Key("hidden_dropout_prob", "dropout", 0.1)
_HEADS = text_heads("DebertaV2", dropped=("out",), pooler=False, dropout=_DROPOUT)
_HEADS["DebertaV2ForSequenceClassification"] = Head(
    spec.ClassifySpec,
    (
        activation("pooler_hidden_act", "gelu", ours="hidden"),
        Key("cls_dropout", "dropout", 0.1, aliases=("hidden_dropout_prob",)),
        fixed("pooler_dropout", 0),
        Rule((), _check_pooler),
    ),
    {"dropped": ("out",)},
)
KEYS = (
    *(key for key in with_defaults(TEXT_KEYS, norm_eps=1e-7) if key.options != ("types",)),
    Rule(
        ("types",),
        lambda config, _: {"types": config.get("type_vocab_size", 0) or None},
        lambda options: {"type_vocab_size": options["types"] or 0},
    ),
    MAX_LEN,
    Key("position_biased_input", "position", True, values={True: "learned", False: "none"}),
    Rule(("buckets", "max_distance", "terms", "position_norm"), _read_relative, _write_relative),
    fixed("relative_attention", True, default=False),
    fixed("share_att_key", True, default=False),
    fixed("conv_kernel_size", None, 0),
    Rule((), _check_sizes),
)

# ---- the published tensors --------------------------------------------------------------------------

_LAYER = {
    "attention.self.{query,key,value}_proj": "self_attn.{q,k,v}_proj",
    "attention.output.dense": "self_attn.out_proj",
    "attention.output.LayerNorm": "norm_self",
    "intermediate.dense": "ffn.up",
    "output.dense": "ffn.down",
    "output.LayerNorm": "norm_ffn",
}
_OLDER = "cls.predictions.transform"


def table(model: Any, names: Collection[str]) -> WeightTable:
    relative = model.encoder.position
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
    model_type="deberta-v2",
    # the base model of version 3
    builder=TEXT_ENCODER,
    keys=KEYS,
    defaults={
        "vocab_size": 128100,
        "position": "none",
        "types": None,
        "norm_eps": 1e-7,
        "buckets": 256,
        "terms": ("c2p", "p2c"),
    },
    heads=_HEADS,
    presets={
        "deberta-v3-base": {},
        "deberta-v3-xsmall": preset(384, 6, 12, 1536),
        "deberta-v3-small": {"num_layers": 6},
        "deberta-v3-large": preset(1024, 16, 24, 4096),
        "mdeberta-v3-base": {"vocab_size": 251000},
    },
    tiny={**TINY, "buckets": 8},
    weight_table=table,
    bare_architecture="DebertaV2Model",
)
