"""The parts of a spec in a few words each, for a line of a drawing."""

from __future__ import annotations

import math
from typing import Any

from glassformer.core import spec


def norm_words(what: spec.Norm) -> str:
    return type(what).__name__


def wiring_words(what: spec.Block) -> str:
    return {
        "pre": "norm before each part",
        "post": "norm after each part",
        "parallel": "parts in parallel, one norm",
        "parallel_split": "parts in parallel, a norm each",
    }[what.wiring]


def attention_words(what: spec.Attention, d_model: int) -> str:
    """`32 heads × 128, 8 for k and v`."""
    words = f"{what.num_heads} heads × {what.head_dim or d_model // what.num_heads}"
    if what.num_kv_heads and what.num_kv_heads != what.num_heads:
        words += f", {what.num_kv_heads} for k and v"
    return words


def reach_words(what: spec.Attention, causal: bool) -> str:
    """Which keys a query may attend to."""
    if what.window:
        return f"causal, window {what.window}" if causal else f"window {what.window}"
    return "causal" if causal else "every position"


def ffn_words(what: spec.FeedForward | spec.GatedFeedForward, d_model: int) -> str:
    gated = "gated " if isinstance(what, spec.GatedFeedForward) else ""
    return f"{d_model} → {what.d_ff} → {d_model}, {gated}{what.activation}"


def position_words(what: spec.AddedPosition | spec.ScorePosition | None) -> str:
    match what:
        case None:
            return ""
        case spec.Sinusoidal():
            return f"sines and cosines, {what.max_len} rows"
        case spec.Learned():
            return f"learned table, {what.max_len} rows"
        case spec.Rotary():
            width = f" on {what.width} features" if what.width else ""
            scaled = f", {_spaced(what.scaling)}" if what.scaling else ""
            return f"rotary{width}, base {what.base:g}{scaled}"
        case spec.Relative():
            return f"learned bias by distance, {what.buckets} buckets"
        case spec.Alibi():
            return "ALiBi, a fixed slope a head"
    return _spaced(what)


def input_words(what: spec.Input, d_model: int) -> str:
    match what:
        case spec.Tokens():
            return f"{what.vocab_size:,} tokens × {d_model}{_scale(what.scale)}"
        case spec.ImagePatches():
            rows, columns = (i // p for i, p in zip(what.image_size, what.patch_size, strict=True))
            return f"{rows} × {columns} squares of {what.patch_size[0]} × {what.patch_size[1]}"
        case spec.SeriesPatches():
            return f"{what.num_patches} pieces of {what.patch_length}, every {what.stride}"
    return _spaced(what)


def head_words(what: spec.Head, tied: bool) -> str:
    match what:
        case spec.LanguageModel():
            words = f"scores over {what.vocab_size:,} tokens"
        case spec.MaskedLanguageModel():
            words = f"dense, {what.activation}, norm, {what.vocab_size:,} tokens"
        case spec.Classify():
            hidden = f"dense, {what.hidden}, " if what.hidden else ""
            words = f"{what.pool} vector, {hidden}{what.num_labels} labels"
        case spec.TokenClassify():
            words = f"{what.num_labels} labels a token"
        case spec.ClassifyTwice():
            words = f"two heads of {what.num_labels} labels, and their mean"
        case spec.Answer():
            words = "where an answer starts and ends"
        case spec.Features():
            words = "the vectors themselves" + (", and a pooled one" if what.pooler else "")
        case spec.Embed():
            words = f"{what.pool} of the vectors" + (", of length 1" if what.normalize else "")
        case spec.Forecast():
            words = f"the next {what.prediction_length} values"
        case _:
            words = _spaced(what)
    return f"{words}, tied" if tied else words


def _scale(scale: float) -> str:
    if scale == 1.0:
        return ""
    root = round(scale * scale)
    return f", times √{root}" if math.isclose(math.sqrt(root), scale) else f", times {scale:g}"


def _spaced(what: Any) -> str:
    """`LinearScaling` -> `linear scaling`: a kind's own name, where nothing better is known."""
    name = type(what).__name__
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
