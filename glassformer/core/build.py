"""From a spec to modules: the only place that matches over kinds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from glassformer.core import embeddings, heads, model, norms, positions, series, spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.init import initialise
from glassformer.core.stack import Stack
from glassformer.errors import InvalidValueError, UnsupportedError

_FORMULAS = (positions.SinusoidalPositions, positions.RotaryPositions, positions.AlibiBias)


def build(what: spec.Model) -> model.AnyModel:
    """The whole model of a spec, freshly drawn.

    Under `torch.device("meta")` it takes no memory, to be filled by `materialise`.
    """
    made: model.AnyModel
    match what:
        case spec.EncoderDecoder():
            made = model.EncoderDecoder(
                what,
                src_embed=embed(what.source, what.encoder.d_model),
                tgt_embed=embed(what.target, what.decoder.d_model),
                encoder=stack(what.encoder, memory_dim=None),
                decoder=stack(what.decoder, memory_dim=what.encoder.d_model),
                head=head(what.head, what.decoder.d_model, what.target),
            )
        case spec.EncoderOnly():
            made = model.EncoderOnly(
                what,
                embed=embed(what.input, what.encoder.d_model),
                encoder=stack(what.encoder),
                head=head(what.head, what.encoder.d_model, what.input),
            )
        case spec.DecoderOnly():
            made = model.DecoderOnly(
                what,
                embed=embed(what.input, what.decoder.d_model),
                decoder=stack(what.decoder),
                head=head(what.head, what.decoder.d_model, what.input),
            )
        case _:
            raise InvalidValueError("spec", what, "the name of a preset or a spec")
    if not any(parameter.is_meta for parameter in made.parameters()):
        initialise(made, what.init)
    return made


def materialise(made: nn.Module, tensors: dict[str, torch.Tensor], device: str = "cpu") -> None:
    """Give a meta model its numbers: parameters and buffers by name, formulas worked out anew."""
    for module in made.modules():
        formulas = [n for n, b in module.named_buffers(recurse=False) if b.is_meta]
        for key in formulas:
            buffer = getattr(module, key)
            setattr(module, key, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))
        if formulas and isinstance(module, _FORMULAS):
            module.reset_parameters()
    for path, tensor in tensors.items():
        owner_path, _, key = path.rpartition(".")
        owner = made.get_submodule(owner_path)
        if key in owner._parameters:
            setattr(owner, key, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
        else:
            setattr(owner, key, tensor)
    if callable(tie := getattr(made, "tie", None)):
        tie()


def canonical(made: nn.Module) -> dict[str, torch.Tensor]:
    """The numbers that make the model, each once, by name: parameters, then saved buffers."""
    state = made.state_dict()
    named = dict(made.named_parameters())
    buffers = {name for name, _ in made.named_buffers()}
    return {**named, **{name: state[name] for name in state if name in buffers}}


def stack(what: spec.Stack, memory_dim: int | None = None) -> Stack:
    """A stack of blocks."""
    return Stack(
        [block(what.block_at(n), what.d_model, memory_dim) for n in range(what.num_layers)],
        causal=what.causal,
        position=_score_position(what, what.position),
        local_position=_score_position(what, what.local_position),
        final_norm=norm(what.final_norm, what.d_model) if what.final_norm else None,
    )


def block(what: spec.Block, d_model: int, memory_dim: int | None = None) -> Block:
    """One layer."""
    across = what.cross_attention
    ffn = FeedForward if isinstance(what.feed_forward, spec.FeedForward) else GatedFeedForward
    return Block(
        self_attn=MultiHeadAttention(d_model, **vars(what.attention)),
        cross_attn=MultiHeadAttention(d_model, **vars(across), memory_dim=memory_dim) if across else None,
        ffn=ffn(d_model, **vars(what.feed_forward)),
        norm=lambda: norm(what.norm, d_model),
        wiring=what.wiring,
        dropout=what.dropout,
    )


def norm(what: spec.Norm, d_model: int) -> nn.Module:
    """A norm over d_model features."""
    match what:
        case spec.LayerNorm():
            return norms.LayerNorm(d_model, **vars(what))
        case spec.RMSNorm():
            return norms.RMSNorm(d_model, **vars(what))
        case spec.BatchNorm():
            return norms.BatchNorm(d_model, **vars(what))


def _score_position(
    what: spec.Stack, position: spec.ScorePosition | None
) -> positions.RotaryPositions | positions.RelativeBias | positions.AlibiBias | None:
    attention = what.block.attention
    match position:
        case None:
            return None
        case spec.Rotary(base=base, width=width, scaling=scaling):
            width = width or attention.head_dim or what.d_model // attention.num_heads
            return positions.RotaryPositions(width, base=base, scaling=scaling)
        case spec.Relative():
            both_ways = not what.causal
            return positions.RelativeBias(attention.num_heads, **vars(position), both_ways=both_ways)
        case spec.Alibi():
            return positions.AlibiBias(attention.num_heads, **vars(position))


def _added_position(
    what: spec.AddedPosition | None, d_model: int
) -> positions.SinusoidalPositions | positions.LearnedPositions | None:
    match what:
        case None:
            return None
        case spec.Sinusoidal():
            return positions.SinusoidalPositions(d_model, **vars(what))
        case spec.Learned():
            return positions.LearnedPositions(d_model, **vars(what))


def embed(what: spec.Input, d_model: int) -> nn.Module:
    """What turns the model's input into vectors."""
    match what:
        case spec.Tokens():
            fields: dict[str, Any] = dict(vars(what))
            fields["position"] = _added_position(what.position, d_model)
            fields["norm"] = norm(what.norm, d_model) if what.norm else None
            return embeddings.TokenInput(d_model, **fields)
        case spec.ImagePatches():
            return embeddings.ImageInput(d_model, **vars(what))
        case spec.SeriesPatches():
            return series.SeriesInput(d_model, **vars(what))
        case spec.Vectors():
            return embeddings.VectorInput()
    raise InvalidValueError("input", what, "an input's spec")


def head(what: spec.Head, d_model: int, source: spec.Input) -> nn.Module:
    """What turns the last vectors into an answer."""
    if isinstance(source, spec.SeriesPatches):
        return _series_head(what, d_model, source)
    match what:
        case spec.Features():
            return heads.FeaturesHead(d_model, **vars(what))
        case spec.LanguageModel():
            return heads.LanguageModelHead(d_model, **vars(what))
        case spec.MaskedLanguageModel():
            fields: dict[str, Any] = {**vars(what), "norm": norm(what.norm, d_model)}
            return heads.MaskedLanguageModelHead(d_model, **fields)
        case spec.Classify():
            return heads.ClassifyHead(d_model, **vars(what))
        case spec.ClassifyTwice():
            return heads.ClassifyTwiceHead(d_model, **vars(what))
        case spec.TokenClassify():
            return heads.TokenClassifyHead(d_model, **vars(what))
        case spec.Answer():
            return heads.AnswerHead(d_model, **vars(what))
        case spec.Embed():
            return heads.EmbedHead(d_model, **vars(what))
    raise InvalidValueError("head", what, "a head's spec")


def _series_head(what: spec.Head, d_model: int, source: spec.SeriesPatches) -> nn.Module:
    """The heads that read channels folded into the batch."""
    channels, rows = source.channels, source.prefix + source.num_patches
    match what:
        case spec.Features(pooler=False):
            return series.SeriesFeaturesHead(channels=channels)
        case spec.Forecast():
            return series.ForecastHead(d_model, channels=channels, rows=rows, **vars(what))
        case spec.SeriesClassify():
            return series.SeriesClassifyHead(d_model, channels=channels, **vars(what))
        case spec.SeriesRegress():
            return series.SeriesRegressHead(d_model, channels=channels, **vars(what))
        case spec.PatchReconstruct():
            length, prefix = source.patch_length, source.prefix
            return series.PatchReconstructHead(
                d_model, channels=channels, patch_length=length, prefix=prefix, **vars(what)
            )
    raise UnsupportedError(
        f"a head of kind {type(what).__name__}",
        "time series",
        hint="use Features without a pooler, Forecast, SeriesClassify, SeriesRegress or PatchReconstruct",
    )
