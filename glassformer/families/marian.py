"""Marian: post-norm encoder-decoder for translation; sinusoidal positions with all sines first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.core import spec
from glassformer.errors import ConflictError
from glassformer.families.config import Config
from glassformer.families.encoder_decoder import (
    ENCODER_DECODER,
    KEYS,
    LANGUAGE_MODEL,
    bias_row,
    block_rows,
)
from glassformer.families.family import TINY, Family
from glassformer.families.keys import Head, Options, Rule, fixed
from glassformer.weights.ops import Computed, Ignored, Op, Rename, Tied


def _read_vocabularies(config: Config, options: Options) -> dict[str, Any]:
    """Return the size of the target's vocabulary, and which matrices the languages share."""
    source, target = options["vocab_size"], config.get("decoder_vocab_size", options["vocab_size"])
    if not config.get("share_encoder_decoder_embeddings", True):
        tied = ("head",) if config.get("tie_word_embeddings", True) else ()
        return {"tgt_vocab_size": target, "tied": tied}
    if target != source:
        raise ConflictError(
            [f"{source} source tokens", f"{target} target tokens"],
            f"{config.where} shares one embedding matrix between both",
            hint="set share_encoder_decoder_embeddings to false or make the vocabularies equal",
        )
    config.only("tie_word_embeddings", True, default=True)
    return {"tgt_vocab_size": target, "tied": ("source", "head")}


def _write_vocabularies(options: Options) -> dict[str, Any]:
    return {
        "decoder_vocab_size": options["tgt_vocab_size"] or options["vocab_size"],
        "share_encoder_decoder_embeddings": "source" in options["tied"],
        "tie_word_embeddings": "head" in options["tied"],
    }


def _read_ids(config: Config, options: Options) -> dict[str, Any]:
    pad = config.get("pad_token_id", 58100)
    return {"pad_id": pad, "start_id": config.get("decoder_start_token_id", pad)}


def _write_ids(options: Options) -> dict[str, Any]:
    return {"pad_token_id": options["pad_id"], "decoder_start_token_id": options["start_id"]}


_KEYS = (
    *KEYS,
    Rule(("tgt_vocab_size", "tied"), _read_vocabularies, _write_vocabularies),
    Rule(("pad_id", "start_id"), _read_ids, _write_ids),
    fixed("normalize_embedding", False),
    fixed("static_position_embeddings", True),
)


def weight_rows(model: spec.EncoderDecoderSpec) -> Sequence[Op]:
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
    return rows


FAMILY = Family(
    name="marian",
    builder=ENCODER_DECODER,  # the defaults are the published translators for one language pair
    keys=_KEYS,
    heads={"MarianMTModel": LANGUAGE_MODEL, "MarianModel": Head(spec.FeaturesSpec)},
    presets={"opus-mt": {}},
    tiny={**TINY, "d_ff": 64},
    rows=weight_rows,
    prefixes=("model.",),
)
