"""BART: post-norm encoder-decoder with learned positions (from table row 2 on) and embedding norm."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.families.encoder_decoder import (
    OFFSET,
    bias_row,
    block_rows,
    encoder_decoder,
    language_model,
    read,
    write,
)
from glassformer.families.family import TINY, Config, Family, label_config, model_prefixes, preset, variant
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Tied, expand

# the base model
bart = variant(
    encoder_decoder,
    "tgt_vocab_size position tied",
    **preset(768, 12, 6, 3072),
    vocab_size=50265,
    max_len=1024,
    position="learned",
    activation="gelu",
    scaled=False,
    pad_id=1,
    start_id=2,
)
ARCHITECTURES: dict[type, str] = {
    spec.LanguageModelSpec: "BartForConditionalGeneration",
    spec.FeaturesSpec: "BartModel",
    spec.ClassifySpec: "BartForSequenceClassification",
    spec.AnswerSpec: "BartForQuestionAnswering",
}


def from_config(config: Config) -> spec.EncoderDecoderSpec:
    options = read(config)
    config.only("tie_word_embeddings", True, default=True)
    config.only("normalize_embedding", True, default=True)
    config.only("static_position_embeddings", False, default=False)
    config.only("extra_pos_embeddings", OFFSET, default=OFFSET)
    dropout = config.get("classifier_dropout", 0.0, "classif_dropout")
    heads: dict[str, spec.HeadSpec] = {
        "BartForConditionalGeneration": language_model(config, options["vocab_size"]),
        "BartModel": spec.FeaturesSpec(),
        # transformers defaults to 3 labels, but does not save the label names if there are 2
        "BartForSequenceClassification": spec.ClassifySpec(
            num_labels=config.num_labels,
            pool="end",
            hidden="tanh",
            dropout=dropout,
            end_id=config.get("eos_token_id", 2),
        ),
        "BartForQuestionAnswering": spec.AnswerSpec(),
    }
    return bart(
        **options,
        pad_id=config.get("pad_token_id", 1),
        start_id=config.get("decoder_start_token_id", 2),
        head=heads[config.architecture],
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoderSpec)
    config = {
        "model_type": "bart",
        "architectures": [ARCHITECTURES[type(model.head)]],
        **write(model),
        "tie_word_embeddings": True,
        **label_config(model.head),
    }
    if isinstance(model.head, spec.ClassifySpec):
        config["classifier_dropout"] = model.head.dropout
        config["eos_token_id"] = model.head.end_id
    return config


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderDecoderSpec)
    token: tuple[str, ...] = ("{base}shared.weight", "{base}{encoder,decoder}.embed_tokens.weight")
    rows: tuple[Op, ...] = (
        Rename("{base}{encoder,decoder}.embed_positions.weight", "{src,tgt}_embed.position.weight"),
        Rename("{base}{encoder,decoder}.layernorm_embedding.{p}", "{src,tgt}_embed.norm.{p}"),
        Ignored("{base}{encoder,decoder}.version"),
    )
    match model.head:
        case spec.LanguageModelSpec():
            token += ("lm_head.weight",)
            rows += bias_row(model.head)
        case spec.ClassifySpec():
            rows += (Rename("classification_head.{dense,out_proj}.{p}", "head.{dense,out}.{p}"),)
        case spec.AnswerSpec():
            rows += (Rename("qa_outputs.{p}", "head.out.{p}"),)
    rows = (Tied(token, "src_embed.token.weight"), *block_rows(model), *expand(rows, p=("weight", "bias")))
    return WeightTable(rows, base=model_prefixes(model.head, "model."))


FAMILY = Family(
    name="bart",
    model_types=("bart",),
    architectures=tuple(ARCHITECTURES.values()),
    build=bart,
    presets={
        "bart-base": {},
        "bart-large": preset(1024, 16, 12, 4096),
    },
    tiny={**TINY, "d_ff": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
    # layer dropout and initialization matter only for training
    ignored_keys=frozenset(
        """encoder_layerdrop decoder_layerdrop init_std output_past force_bos_token_to_be_generated
        classifier_dropout classif_dropout""".split()
    ),
)
