"""Marian: post-norm encoder-decoder for translation; sinusoidal positions with all sines first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from glassformer.core import spec
from glassformer.errors import ConflictError
from glassformer.families.encoder_decoder import (
    bias_row,
    block_rows,
    encoder_decoder,
    language_model,
    read,
    write,
)
from glassformer.families.family import TINY, Config, Family, model_prefixes, spec_options, variant
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Computed, Ignored, Op, Rename, Tied

# the published translators for one language pair
marian = variant(encoder_decoder, "position")


def from_config(config: Config) -> spec.EncoderDecoderSpec:
    options = read(config)
    config.only("normalize_embedding", False, default=False)
    config.only("static_position_embeddings", True, default=True)
    source, target = options["vocab_size"], config.get("decoder_vocab_size", options["vocab_size"])
    if config.get("share_encoder_decoder_embeddings", True):
        if target != source:
            raise ConflictError(
                [f"{source} source tokens", f"{target} target tokens"],
                f"{config.where} shares one embedding matrix between both",
                hint="set share_encoder_decoder_embeddings to false or make the vocabularies equal",
            )
        config.only("tie_word_embeddings", True, default=True)
        tied: tuple[str, ...] = ("source", "head")
    else:
        tied = ("head",) if config.get("tie_word_embeddings", True) else ()
    heads: dict[str, spec.HeadSpec] = {
        "MarianMTModel": language_model(config, target),
        "MarianModel": spec.FeaturesSpec(),
    }
    pad = config.get("pad_token_id", 58100)
    return marian(
        **options,
        tgt_vocab_size=target,
        pad_id=pad,
        start_id=config.get("decoder_start_token_id", pad),
        tied=tied,
        head=heads[config.architecture],
    )


def to_config(model: spec.ModelSpec) -> dict[str, Any]:
    assert isinstance(model, spec.EncoderDecoderSpec) and isinstance(model.target, spec.TokensSpec)
    return {
        "model_type": "marian",
        "architectures": [
            {spec.LanguageModelSpec: "MarianMTModel", spec.FeaturesSpec: "MarianModel"}[type(model.head)]
        ],
        **write(model),
        "decoder_vocab_size": model.target.vocab_size,
        "share_encoder_decoder_embeddings": "source" in model.tied,
        "tie_word_embeddings": spec_options(model)["tied"],
    }


def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
    assert isinstance(model, spec.EncoderDecoderSpec)
    bare = isinstance(model.head, spec.FeaturesSpec)
    encoder, decoder = "{base}encoder.embed_tokens.weight", "{base}decoder.embed_tokens.weight"
    head = () if bare else ("lm_head.weight",)
    rows: tuple[Op, ...]
    match "source" in model.tied, "head" in model.tied or bare:
        case True, _:
            rows = (Tied(("{base}shared.weight", encoder, decoder, *head), "src_embed.token.weight"),)
        case False, True:
            rows = (
                Rename(encoder, "src_embed.token.weight"),
                Tied((decoder, *head), "tgt_embed.token.weight"),
            )
        case _:
            rows = (
                Rename((encoder, decoder), "{src,tgt}_embed.token.weight"),
                Rename(head, "head.weight"),
            )
    rows += (
        Computed("{base}encoder.embed_positions.weight", "src_embed.position.table", persistent=bare),
        Computed("{base}decoder.embed_positions.weight", "tgt_embed.position.table", persistent=bare),
        Ignored("{base}{encoder,decoder}.version"),
    )
    rows += block_rows(model) + bias_row(model.head)
    return WeightTable(rows, base=model_prefixes(model.head, "model."))


FAMILY = Family(
    name="marian",
    model_types=("marian",),
    architectures=("MarianMTModel", "MarianModel"),
    build=marian,
    presets={"opus-mt": {}},
    tiny={**TINY, "d_ff": 64},
    from_config=from_config,
    to_config=to_config,
    table=table,
    # layer dropout and initialization matter only for training
    ignored_keys=frozenset(
        """encoder_layerdrop decoder_layerdrop init_std classif_dropout classifier_dropout bad_words_ids
        extra_pos_embeddings""".split()
    ),
)
