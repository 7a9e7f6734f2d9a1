"""Sentence encoders: text encoders whose `modules.json` defines the pooling to one embedding."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.core import spec
from glassformer.errors import FileMissingError, FileProblemError, InvalidValueError
from glassformer.families import albert, bert, deberta, distilbert, electra, modernbert, roberta
from glassformer.families.config import Config, UnsupportedConfigError
from glassformer.families.family import TINY, Builder, Family, spec_options
from glassformer.families.keys import Head
from glassformer.families.registry import FAMILIES_BY_MODEL_TYPE
from glassformer.families.text_encoder import KEYS, MAX_LEN, POOLER, Pool, text_encoder
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored

# published pooling names (POOLS), and the older boolean keys (FLAGS)
POOLS: dict[str, Pool] = {
    "mean": "mean",
    "cls": "first",
    "max": "max",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "lasttoken": "last",
}
FLAGS: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

# further files of such a folder: how texts are truncated and prompted; saved with the model
_FURTHER_FILES = (
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_xlm-roberta_config.json",
)
_ENCODERS = tuple(
    module.FAMILY for module in (bert, roberta, distilbert, electra, albert, modernbert, deberta)
)
_MODULES = "modules.json"
_TASK = "feature-extraction"
_PUBLISHER = "sentence_transformers."


def from_config(config: Config) -> spec.EncoderOnlySpec:
    path, normalize = _modules(config)
    kind = config.values["model_type"]
    encoder = next(family for family in _ENCODERS if family.name in FAMILIES_BY_MODEL_TYPE[kind])
    pooler = config.has_pooler and any(POOLER in head.keys for head in encoder.heads.values())
    head = spec.EmbedSpec(pool=_pool(config, path), normalize=normalize, pooler=pooler)
    model = encoder.with_head(config, head)
    assert isinstance(model, spec.EncoderOnlySpec)
    for name in _FURTHER_FILES:
        content = _object(config, name) or {}
        if content.get("transformer_task", _TASK) != _TASK:
            raise UnsupportedConfigError(
                _where(config, name), "transformer_task", content["transformer_task"], _TASK
            )
    return model


def _modules(config: Config) -> tuple[str, bool]:
    """Return the folder of the pooling config, and whether embeddings are normalized."""
    listed = config.read_sibling(_MODULES)
    where = _where(config, _MODULES)
    if not isinstance(listed, list) or not all(isinstance(m, dict) for m in listed):
        raise FileProblemError(where, "is not a list of modules")
    kinds = [str(module.get("type")) for module in listed]
    short = [k.rsplit(".", 1)[-1] if k.startswith(_PUBLISHER) else k for k in kinds]
    if short not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise UnsupportedConfigError(where, "modules", short, "Transformer, Pooling and optionally Normalize")
    path = listed[1].get("path")
    if listed[0].get("path") != "" or not isinstance(path, str) or path in ("", ".", ".."):
        raise FileProblemError(where, "must have the Transformer in its own folder and Pooling in one below")
    if "/" in path or "\\" in path:
        raise FileProblemError(where, f"has its Pooling in {path!r}, which is not a folder in the same place")
    return path, len(short) == 3


def _pool(config: Config, path: str) -> Pool:
    name = f"{path}/config.json"
    where = _where(config, name)
    pooling = _object(config, name)
    if pooling is None:
        raise FileMissingError(where, hint=f"{_MODULES} names it; download the whole folder")
    modes = pooling.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in FLAGS.items() if pooling.get(key)] or ["mean"]
    modes = modes if isinstance(modes, list) else [modes]
    if len(modes) != 1 or not isinstance(modes[0], str) or modes[0] not in POOLS:
        raise UnsupportedConfigError(where, "pooling_mode", modes, f"one of {', '.join(POOLS)}")
    if not pooling.get("include_prompt", True):
        raise UnsupportedConfigError(where, "include_prompt", False, "true")
    width = pooling.get("embedding_dimension", pooling.get("word_embedding_dimension"))
    d_model = config.values.get("hidden_size", config.values.get("dim"))
    if width is not None and width != d_model:
        raise InvalidValueError(f"{where}: embedding_dimension", width, f"{d_model}, the encoder's width")
    return POOLS[modes[0]]


def _where(config: Config, name: str) -> str:
    return str(Path(config.where).parent / name)


def _object(config: Config, name: str) -> dict[str, Any] | None:
    content = config.read_sibling(name)
    if content is not None and not isinstance(content, dict):
        raise FileProblemError(_where(config, name), "is not a JSON object")
    return content


def _encoder(model: Any) -> tuple[Family, spec.EncoderOnlySpec]:
    """Return the family of the text encoder, the first that describes it, and its spec."""
    bare = replace(model, head=spec.FeaturesSpec(pooler=model.head.pooler))
    return next(family for family in _ENCODERS if family.describes(bare)), bare


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    family, bare = _encoder(model)
    return family.to_config(bare)


def files(model: Any) -> dict[str, Any]:
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Normalize", "2_Normalize")] if model.head.normalize else []
    mode = next(mode for mode, pool in POOLS.items() if pool == model.head.pool)
    return {
        _MODULES: [
            {"idx": n, "name": str(n), "path": path, "type": f"{_PUBLISHER}models.{kind}"}
            for n, (kind, path) in enumerate(kinds)
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": model.encoder.d_model,
            **{key: flag == mode for key, flag in FLAGS.items()},
            "include_prompt": True,
        },
        "sentence_bert_config.json": {
            "max_seq_length": spec_options(model)["max_len"],
            "do_lower_case": False,
        },
    }


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    inner = _encoder(model)[0].table(model, names)
    # encoders are often published with a pretraining head, which embeddings do not use
    heads = Ignored(
        (
            "cls.*",
            "lm_head.*",
            "vocab_*",
            "classifier.*",
            "pre_classifier.*",
            "qa_outputs.*",
            "generator_*",
            "discriminator_predictions.*",
            "predictions.*",
            "head.*",
            "decoder.*",
        )
    )
    return WeightTable((*inner.ops, heads), base=inner.base)


# the encoder may be of any of these families, whose options are compared in `_encoder`
_ANY_ENCODER = Builder(text_encoder, lambda _: {}, shared=True)

FAMILY = Family(
    name="sentence",
    builder=_ANY_ENCODER,
    keys=(*(key for key in KEYS if key.options != ("tied",)), MAX_LEN),
    defaults={"d_model": 384, "num_layers": 6, "pool": "mean", "normalize": True},  # the six-layer MiniLM
    more_options=("pool", "normalize"),
    presets={
        "all-minilm-l6-v2": {},
        "all-minilm-l12-v2": {"num_layers": 12},
        "bge-small-en-v1.5": {"num_layers": 12, "pool": "first"},
        "bge-base-en-v1.5": {"d_model": 768, "num_layers": 12, "pool": "first"},
    },
    tiny=TINY,
    reader=from_config,
    writer=to_config,
    heads={name: Head(spec.EmbedSpec) for family in _ENCODERS for name in family.heads},
    weight_table=table,
    files=files,
    marker_files=(_MODULES,),
)
