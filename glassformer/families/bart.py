"""BART: post-norm encoder-decoder with learned positions (from table row 2 on) and embedding norm."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.core import spec
from glassformer.families.encoder_decoder import (
    ENCODER_DECODER,
    KEYS,
    LANGUAGE_MODEL,
    OFFSET,
    bias_row,
    block_rows,
)
from glassformer.families.family import TINY, Family, preset
from glassformer.families.keys import Head, Key, fixed
from glassformer.weights.ops import Ignored, Op, Rename, Tied, expand

_KEYS = (
    *KEYS,
    Key("pad_token_id", "pad_id", 1),
    Key("decoder_start_token_id", "start_id", 2),
    fixed("tie_word_embeddings", True),
    fixed("normalize_embedding", True),
    fixed("static_position_embeddings", False),
    fixed("extra_pos_embeddings", OFFSET),
)
_CLASSIFIER = Head(  # transformers defaults to 3 labels, but does not save the label names if there are 2
    spec.ClassifySpec,
    (
        Key("classifier_dropout", "dropout", 0.0, aliases=("classif_dropout",)),
        Key("eos_token_id", "end_id", 2),
    ),
    {"pool": "end", "hidden": "tanh"},
)


def weight_rows(model: spec.EncoderDecoderSpec) -> Sequence[Op]:
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
    return rows


FAMILY = Family(
    name="bart",
    builder=ENCODER_DECODER,
    keys=_KEYS,
    # the base model
    defaults={
        **preset(768, 12, 6, 3072),
        "vocab_size": 50265,
        "max_len": 1024,
        "position": "learned",
        "activation": "gelu",
        "scaled": False,
        "pad_id": 1,
        "start_id": 2,
    },
    heads={
        "BartForConditionalGeneration": LANGUAGE_MODEL,
        "BartModel": Head(spec.FeaturesSpec),
        "BartForSequenceClassification": _CLASSIFIER,
        "BartForQuestionAnswering": Head(spec.AnswerSpec),
    },
    presets={
        "bart-base": {},
        "bart-large": preset(1024, 16, 12, 4096),
    },
    tiny={**TINY, "d_ff": 64},
    rows=weight_rows,
    prefixes=("model.",),
)
