"""From a spec to modules: the only place that matches over kinds."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from glassformer.core import embeddings, heads, model, positions, spec
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.norms import make_norm
from glassformer.core.series import SERIES_HEADS, SeriesInput
from glassformer.core.stack import Stack
from glassformer.errors import InvalidValueError, UnsupportedError

_FORMULAS = (positions.SinusoidalPositions, positions.RotaryPositions, positions.AlibiBias)


def build_model(what: spec.ModelSpec) -> model.AnyModel:
    """The whole model of a spec, freshly drawn.

    Under `torch.device("meta")` it takes no memory, to be filled by `fill_meta_model`.
    """
    made: model.AnyModel
    match what:
        case spec.EncoderDecoderSpec():
            made = model.EncoderDecoder(
                what,
                src_embed=build_embedding(what.source, what.encoder.d_model),
                tgt_embed=build_embedding(what.target, what.decoder.d_model),
                encoder=build_stack(what.encoder, memory_dim=None),
                decoder=build_stack(what.decoder, memory_dim=what.encoder.d_model),
                head=build_head(what.head, what.decoder.d_model, what.target),
            )
        case spec.EncoderOnlySpec():
            made = model.EncoderOnly(
                what,
                embed=build_embedding(what.input, what.encoder.d_model),
                encoder=build_stack(what.encoder),
                head=build_head(what.head, what.encoder.d_model, what.input),
            )
        case spec.DecoderOnlySpec():
            made = model.DecoderOnly(
                what,
                embed=build_embedding(what.input, what.decoder.d_model),
                decoder=build_stack(what.decoder),
                head=build_head(what.head, what.decoder.d_model, what.input),
            )
        case _:
            raise InvalidValueError("spec", what, "the name of a preset or a spec")
    if not any(parameter.is_meta for parameter in made.parameters()):
        initialize(made, what.init)
    return made


def fill_meta_model(made: nn.Module, tensors: dict[str, torch.Tensor], device: str = "cpu") -> None:
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


def unique_state_dict(made: nn.Module) -> dict[str, torch.Tensor]:
    """The numbers that make the model, each once, by name: parameters, then saved buffers."""
    state = made.state_dict()
    named = dict(made.named_parameters())
    buffers = {name for name, _ in made.named_buffers()}
    return {**named, **{name: state[name] for name in state if name in buffers}}


def build_stack(what: spec.StackSpec, memory_dim: int | None = None) -> Stack:
    """A stack of blocks."""
    return Stack(
        [build_block(what.block_at(n), what.d_model, memory_dim) for n in range(what.num_layers)],
        causal=what.causal,
        position=_score_position(what, what.position),
        local_position=_score_position(what, what.local_position),
        final_norm=make_norm(what.final_norm, what.d_model) if what.final_norm else None,
    )


def build_block(what: spec.BlockSpec, d_model: int, memory_dim: int | None = None) -> Block:
    """One layer."""
    across = what.cross_attention
    ffn = FeedForward if isinstance(what.feed_forward, spec.FeedForwardSpec) else GatedFeedForward
    return Block(
        self_attn=MultiHeadAttention(d_model, **vars(what.attention)),
        cross_attn=MultiHeadAttention(d_model, **vars(across), memory_dim=memory_dim) if across else None,
        ffn=ffn(d_model, **vars(what.feed_forward)),
        norm=lambda: make_norm(what.norm, d_model),
        wiring=what.wiring,
        dropout=what.dropout,
    )


def _score_position(
    what: spec.StackSpec, position: spec.AttentionPositionSpec | None
) -> positions.RotaryPositions | positions.RelativeBias | positions.AlibiBias | None:
    attention = what.block.attention
    match position:
        case None:
            return None
        case spec.RotarySpec(base=base, width=width, scaling=scaling):
            width = width or attention.head_dim or what.d_model // attention.num_heads
            return positions.RotaryPositions(width, base=base, scaling=scaling)
        case spec.RelativeSpec():
            bidirectional = not what.causal
            return positions.RelativeBias(attention.num_heads, **vars(position), bidirectional=bidirectional)
        case spec.AlibiSpec():
            return positions.AlibiBias(attention.num_heads, **vars(position))


def build_embedding(what: spec.InputSpec, d_model: int) -> nn.Module:
    """What turns the model's input into vectors."""
    match what:
        case spec.TokensSpec():
            kinds: dict[type, Any] = {
                spec.SinusoidalSpec: positions.SinusoidalPositions,
                spec.LearnedSpec: positions.LearnedPositions,
            }
            place = what.position
            fields: dict[str, Any] = {
                **vars(what),
                "position": None if place is None else kinds[type(place)](d_model, **vars(place)),
                "norm": make_norm(what.norm, d_model) if what.norm else None,
            }
            return embeddings.TokenInput(d_model, **fields)
        case spec.ImagePatchesSpec():
            return embeddings.ImageInput(d_model, what)
        case spec.SeriesPatchesSpec():
            return SeriesInput(d_model, what)
    return embeddings.VectorInput()


def build_head(what: spec.HeadSpec, d_model: int, source: spec.InputSpec) -> nn.Module:
    """What turns the last vectors into an answer."""
    if isinstance(source, spec.SeriesPatchesSpec):
        if type(what) not in SERIES_HEADS or getattr(what, "pooler", False):
            known = ", ".join(kind.__name__ for kind in SERIES_HEADS)
            hint = f"use {known}, without a pooler"
            raise UnsupportedError(f"a head of kind {what.kind}", "time series", hint=hint)
        return SERIES_HEADS[type(what)](d_model, what, source)
    if isinstance(what, spec.LanguageModelSpec):
        return heads.LanguageModelHead(d_model, **vars(what))
    if type(what) not in heads.HEADS:
        raise UnsupportedError(f"a head of kind {what.kind}", source.kind)
    return heads.HEADS[type(what)](d_model, what)


# ---- initialization ---------------------------------------------------------------------------------------

_TABLES = (nn.Embedding, positions.LearnedPositions, positions.RelativeBias, heads.VocabularyHead)
_WRITERS = ("out_proj", "ffn.down")  # what adds to the residual stream


@torch.no_grad()
def initialize(model: nn.Module, init: spec.InitSpec) -> None:
    """Draw every weight anew, in the order of the modules; norms keep their ones and zeros."""
    depth = sum(name.endswith(_WRITERS) for name, _ in model.named_modules())
    for name, module in model.named_modules():
        match init:
            case spec.XavierSpec():
                _xavier(module)
            case spec.NormalSpec(std=std, residual=residual):
                shrunk = residual == "shrunk" and name.endswith(_WRITERS)
                shrink = math.sqrt(depth) if shrunk else 1.0
                _normal(module, std, shrink)


def _xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, heads.VocabularyHead):
        nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    elif isinstance(module, positions.LearnedPositions | positions.RelativeBias):
        nn.init.normal_(module.weight, std=0.02)


def _normal(module: nn.Module, std: float, shrink: float) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, std=std / shrink)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, _TABLES):
        nn.init.normal_(module.weight, std=std)
    elif isinstance(module, embeddings.ImageInput | SeriesInput):
        for table in module.parameters(recurse=False):  # prefix tokens and learned positions
            nn.init.normal_(table, std=std)
