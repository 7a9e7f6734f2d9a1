"""Build modules from specs; only this file branches on the class of a spec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from glassformer.core import embeddings, heads, positions, spatial
from glassformer.core import spec as specs
from glassformer.core.attention import MultiHeadAttention
from glassformer.core.block import Block
from glassformer.core.convolution.hybrid import (
    ConvolutionMerging,
    ConvolutionStage,
    ConvolutionStem,
)
from glassformer.core.convolution.layers import ConvNorm, Neck
from glassformer.core.convolution.resnet import ResNet
from glassformer.core.deformable import DeformableAttention
from glassformer.core.feedforward import FeedForward, GatedFeedForward
from glassformer.core.mask_classifier import EncoderMaskClassifier, MaskClassifier
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly, TwoTower
from glassformer.core.norms import LayerNorm, LayerScale, make_norm
from glassformer.core.pixel_decoder import (
    NUM_LEVELS,
    DeformablePixelDecoder,
    PixelDecoder,
    PyramidPixelDecoder,
)
from glassformer.core.prompts import PromptEncoder
from glassformer.core.segmenter import PromptedMaskHead, PromptedSegmenter
from glassformer.core.series import SERIES_HEADS, SeriesInput
from glassformer.core.stack import AttentionPosition, Stack
from glassformer.core.stages import PatchMerging, Stages
from glassformer.core.two_way import TwoWayStack
from glassformer.errors import InvalidValueError, UnsupportedError

_COMPUTED = (
    positions.SinusoidalPositions,
    positions.RotaryPositions,
    positions.AlibiBias,
    spatial.RelativeBias2d,
    heads.MaskHead,
    spatial.LogBias2d,
)


def build_model(spec: specs.ModelSpec) -> AnyModel:
    """Build a model from its spec, with freshly initialized weights.

    Under `torch.device("meta")` the model takes no memory; `fill_meta_model` then sets its weights.
    """
    model: AnyModel
    match spec:
        case specs.EncoderDecoderSpec():
            model = EncoderDecoder(
                spec,
                src_embed=build_embedding(spec.source, spec.encoder.d_model),
                tgt_embed=build_embedding(spec.target, spec.decoder.d_model),
                encoder=build_stack(spec.encoder, memory_dim=None),
                decoder=build_stack(spec.decoder, memory_dim=spec.encoder.d_model),
                head=build_head(spec.head, spec.decoder.d_model, spec.target),
            )
        case specs.EncoderOnlySpec():
            model = _build_encoder(spec)
        case specs.DecoderOnlySpec():
            model = DecoderOnly(
                spec,
                embed=build_embedding(spec.input, spec.decoder.d_model),
                decoder=build_stack(spec.decoder),
                head=build_head(spec.head, spec.decoder.d_model, spec.input),
            )
        case specs.PromptedSegmenterSpec():
            model = _build_segmenter(spec)
        case specs.TwoTowerSpec():
            model = TwoTower(
                spec,
                image=_build_encoder(spec.image),
                text=_build_encoder(spec.text),
                head=heads.SimilarityHead(spec.head),
            )
        case specs.EncoderMaskClassifierSpec():
            model = EncoderMaskClassifier(
                spec,
                embed=build_embedding(spec.input, spec.encoder.d_model),
                encoder=build_stack(spec.encoder),
                head=_build_mask_head(spec.head, spec.encoder.d_model),
            )
        case specs.MaskClassifierSpec():
            model = _build_mask_classifier(spec)
        case _:
            raise InvalidValueError("spec", spec, "the name of a preset or a spec")
    if not any(parameter.is_meta for parameter in model.parameters()):
        initialize(model, spec.init)
    return model


def _build_segmenter(spec: specs.PromptedSegmenterSpec) -> PromptedSegmenter:
    source, width = spec.input, spec.decoder.d_model
    return PromptedSegmenter(
        spec,
        embed=build_embedding(source, spec.encoder.widths[0]),
        encoder=build_stages(spec.encoder),
        neck=Neck(spec.encoder.d_model, spec.neck),
        prompt=PromptEncoder(width, spec.prompt, image_size=source.image_size),
        decoder=TwoWayStack(spec.decoder),
        head=PromptedMaskHead(width, spec.head),
    )


def _build_encoder(spec: specs.EncoderOnlySpec) -> EncoderOnly:
    return EncoderOnly(
        spec,
        embed=build_embedding(spec.input, spec.encoder.widths[0]),
        encoder=build_stages(spec.encoder),
        head=build_head(spec.head, spec.encoder.d_model, spec.input, widths=spec.encoder.widths),
    )


def fill_meta_model(model: nn.Module, tensors: dict[str, torch.Tensor], device: str = "cpu") -> None:
    """Set the parameters and buffers of a model on the meta device; computed buffers are recomputed."""
    for module in model.modules():
        buffers = [n for n, b in module.named_buffers(recurse=False) if b.is_meta]
        for key in buffers:
            buffer = getattr(module, key)
            setattr(module, key, torch.zeros(buffer.shape, dtype=buffer.dtype, device=device))
        if buffers and isinstance(module, _COMPUTED):
            module.reset_parameters()
    for path, tensor in tensors.items():
        owner_path, _, key = path.rpartition(".")
        owner = model.get_submodule(owner_path)
        if key in owner._parameters:
            setattr(owner, key, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
        else:
            setattr(owner, key, tensor)
    if callable(tie := getattr(model, "tie", None)):
        tie()


def unique_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters, then persistent buffers, by name; a shared tensor appears once."""
    state = model.state_dict()
    parameters = dict(model.named_parameters())
    buffers = {name for name, _ in model.named_buffers()}
    return {**parameters, **{name: state[name] for name in state if name in buffers}}


def matches_spec(model: AnyModel) -> bool:
    """Return whether a model has the weights that its spec describes; false if a part was replaced.

    LoRA adapters do not count: they are merged when the model is saved.
    """
    with torch.device("meta"):
        described = unique_state_dict(build_model(model.spec))
    shapes = {name: t.shape for name, t in unique_state_dict(model).items() if ".lora_" not in name}
    return shapes == {name: tensor.shape for name, tensor in described.items()}


def _build_mask_head(spec: specs.HeadSpec, d_model: int) -> heads.MaskHead:
    if not isinstance(spec, specs.MasksSpec):
        raise UnsupportedError("a mask classifier", f"the {spec.kind} head", hint="use MasksSpec")
    return heads.MaskHead(d_model, spec)


def _build_mask_classifier(spec: specs.MaskClassifierSpec) -> MaskClassifier:
    head, source = _build_mask_head(spec.head, spec.decoder.d_model), spec.input
    backbone: nn.Module
    if isinstance(source.backbone, specs.ResNetSpec):
        backbone = ResNet(source.backbone)
    else:
        backbone = _build_encoder(source.backbone)
    channels = specs.feature_channels(source.backbone)
    embed: PixelDecoder
    if isinstance(source, specs.FeaturePyramidSpec):
        embed = PyramidPixelDecoder(backbone, channels, source, mask_dim=head.mask_dim)
    else:
        encoder = _build_deformable_stack(source)
        embed = DeformablePixelDecoder(backbone, channels, source, mask_dim=head.mask_dim, encoder=encoder)
    queries = embeddings.ObjectQueries(spec.decoder.d_model, spec.target)
    return MaskClassifier(spec, embed=embed, queries=queries, decoder=build_stack(spec.decoder), head=head)


def _build_deformable_stack(spec: specs.DeformablePixelDecoderSpec) -> Stack:
    return Stack(
        [
            Block(
                self_attn=DeformableAttention(
                    spec.width, num_heads=spec.num_heads, num_levels=NUM_LEVELS, num_points=spec.num_points
                ),
                ffn=FeedForward(spec.width, d_ff=spec.d_ff, dropout=spec.dropout),
                norm=lambda: LayerNorm(spec.width),
                dropout=spec.dropout,
            )
            for _ in range(spec.num_layers)
        ]
    )


def build_stack(spec: specs.StackSpec, memory_dim: int | None = None) -> Stack:
    """Build a stack of blocks. memory_dim: width of the encoder output, if not d_model."""
    blocks: dict[int, Block] = {}
    for n in range(spec.num_layers):
        if spec.group_of(n) not in blocks:
            blocks[spec.group_of(n)] = build_block(
                spec.block_at(n), spec.d_model, memory_dim, drop_path=spec.drop_path_of(n)
            )
    return Stack(
        [blocks[spec.group_of(n)] for n in range(spec.num_layers)],
        first_norm=spec.first_norm,
        causal=spec.causal,
        position=_attention_position(spec, spec.position),
        local_position=_attention_position(spec, spec.local_position),
        final_norm=make_norm(spec.final_norm, spec.d_model) if spec.final_norm else None,
    )


def build_stages(spec: specs.EncoderSpec | specs.HybridStagesSpec) -> Stack | Stages:
    """Build an encoder: a stack, or a hierarchy of stages."""
    match spec:
        case specs.StackSpec():
            return build_stack(spec)
        case specs.StagesSpec(merging_norm=norm, merging_order=order):
            return Stages(
                [build_stack(stage) for stage in spec.stages],
                merging=[
                    PatchMerging(a.d_model, d_out=b.d_model, norm=norm, order=order)
                    for a, b in pairwise(spec.stages)
                ],
                final_norm=make_norm(spec.final_norm, spec.d_model) if spec.final_norm else None,
            )
        case specs.HybridStagesSpec(activation=activation):
            return Stages(
                [
                    build_stack(stage)
                    if isinstance(stage, specs.StackSpec)
                    else ConvolutionStage(stage, activation)
                    for stage in spec.stages
                ],
                merging=[
                    ConvolutionMerging(a.d_model, d_out=b.d_model, stride=stride, activation=activation)
                    for (a, b), stride in zip(pairwise(spec.stages), spec.strides, strict=True)
                ],
            )


def build_block(
    spec: specs.BlockSpec, d_model: int, memory_dim: int | None = None, *, drop_path: float = 0.0
) -> Block:
    """Build one layer. drop_path: its stochastic depth rate."""
    init = spec.layer_scale
    cross = spec.cross_attention
    ffn = FeedForward if isinstance(spec.feed_forward, specs.FeedForwardSpec) else GatedFeedForward
    return Block(
        self_attn=MultiHeadAttention(d_model, **vars(spec.attention)),
        cross_attn=MultiHeadAttention(d_model, **vars(cross), memory_dim=memory_dim) if cross else None,
        ffn=ffn(d_model, **vars(spec.feed_forward)),
        norm=lambda: make_norm(spec.norm, d_model),
        wiring=spec.wiring,
        dropout=spec.dropout,
        local_conv=ConvNorm(d_model, d_model, spec.local_conv, groups=d_model) if spec.local_conv else None,
        layer_scale=None if init is None else lambda: LayerScale(d_model, init=init),
        drop_path=drop_path,
        order=spec.order,
    )


def _attention_position(
    spec: specs.StackSpec, position: specs.AttentionPositionSpec | None
) -> AttentionPosition | None:
    attention = spec.block.attention
    match position:
        case None:
            return None
        case specs.RotarySpec(base=base, width=width, scaling=scaling):
            width = width or attention.head_dim or spec.d_model // attention.num_heads
            return positions.RotaryPositions(width, base=base, scaling=scaling)
        case specs.RelativeSpec():
            bidirectional = not spec.causal
            return positions.RelativeBias(attention.num_heads, **vars(position), bidirectional=bidirectional)
        case specs.AlibiSpec():
            return positions.AlibiBias(attention.num_heads, **vars(position))
        case specs.DisentangledSpec():
            return positions.DisentangledPositions(
                spec.d_model,
                max_distance=position.max_distance,
                buckets=position.buckets,
                kinds=position.terms,
                norm=make_norm(position.norm, spec.d_model) if position.norm else None,
                dropout=position.dropout,
            )


def build_embedding(spec: specs.InputSpec, d_model: int) -> nn.Module:
    """Build the module that embeds the input."""
    match spec:
        case specs.TokensSpec():
            kinds: dict[type, Any] = {
                specs.SinusoidalSpec: positions.SinusoidalPositions,
                specs.LearnedSpec: positions.LearnedPositions,
            }
            position, width = spec.position, spec.embedding_dim or d_model
            fields: dict[str, Any] = {
                **vars(spec),
                "position": position and kinds[type(position)](width, **vars(position)),
                "norm": make_norm(spec.norm, width) if spec.norm else None,
            }
            return embeddings.TokenInput(d_model, **fields)
        case specs.ImagePatchesSpec():
            return embeddings.ImageInput(d_model, spec)
        case specs.ConvolutionStemSpec():
            return ConvolutionStem(d_model, spec)
        case specs.FeatureMapSpec():
            return embeddings.FeatureMapInput(d_model, spec)
        case specs.ObjectQueriesSpec():
            return embeddings.ObjectQueries(d_model, spec)
        case specs.SeriesPatchesSpec():
            return SeriesInput(d_model, spec)
    return embeddings.VectorInput()


def build_head(
    spec: specs.HeadSpec, d_model: int, source: specs.InputSpec, *, widths: Sequence[int] = ()
) -> nn.Module:
    """Build the head on top of the last hidden states. widths: of the embedding and of every layer."""
    if isinstance(source, specs.SeriesPatchesSpec):
        if type(spec) not in SERIES_HEADS or getattr(spec, "pooler", False):
            known = ", ".join(kind.__name__ for kind in SERIES_HEADS)
            hint = f"use {known}, without a pooler"
            raise UnsupportedError(f"the {spec.kind} head", "time series", hint=hint)
        return SERIES_HEADS[type(spec)](d_model, spec, source)
    if isinstance(spec, specs.LanguageModelSpec):
        return heads.LanguageModelHead(d_model, **vars(spec))
    if isinstance(spec, specs.BackboneSpec):
        if not isinstance(source, specs.ImagePatchesSpec):
            raise UnsupportedError(f"the {spec.kind} head", f"{source.kind} inputs")
        return heads.BackboneHead(spec, widths)
    if type(spec) not in heads.HEADS:
        raise UnsupportedError(f"the {spec.kind} head", f"{source.kind} inputs")
    return heads.HEADS[type(spec)](d_model, spec)


# ---- initialization ---------------------------------------------------------------------------------------

_POSITION_TABLES = (positions.LearnedPositions, positions.RelativeBias, positions.DisentangledPositions)
_TABLES = (nn.Embedding, *_POSITION_TABLES, heads.VocabularyHead, spatial.RelativeBias2d)
_RESIDUAL_WRITERS = ("out_proj", "ffn.down")  # projections whose output is added to the residual stream


@torch.no_grad()
def initialize(model: nn.Module, init: specs.InitSpec) -> None:
    """Initialize every weight in the order of `modules()`; norms keep weight 1 and bias 0."""
    depth = sum(name.endswith(_RESIDUAL_WRITERS) for name, _ in model.named_modules())
    for name, module in model.named_modules():
        match init:
            case specs.XavierSpec():
                _xavier(module)
            case specs.NormalSpec(std=std, residual=residual):
                shrunk = residual == "shrunk" and name.endswith(_RESIDUAL_WRITERS)
                shrink = math.sqrt(depth) if shrunk else 1.0
                _normal(module, std, shrink)
    for module in model.modules():
        if isinstance(module, ConvNorm | DeformableAttention):
            module.reset_parameters()


def _xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, heads.VocabularyHead):
        nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    elif isinstance(module, _POSITION_TABLES):
        nn.init.normal_(module.weight, std=0.02)
    elif isinstance(module, heads.AttentionPoolHead):
        nn.init.normal_(module.probe, std=0.02)


def _normal(module: nn.Module, std: float, shrink: float) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, std=std / shrink)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, _TABLES):
        nn.init.normal_(module.weight, std=std)
    elif isinstance(module, embeddings.ImageInput | SeriesInput | heads.AttentionPoolHead):
        for table in module.parameters(recurse=False):  # prefix tokens, learned positions, probe
            nn.init.normal_(table, std=std)
