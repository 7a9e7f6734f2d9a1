"""Build the models and parts for images from their specs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from glassformer.core import image_text
from glassformer.core import spec as specs
from glassformer.core.block import Block
from glassformer.core.build import build_embedding, build_encoder, build_layers, build_stack
from glassformer.core.feedforward import FeedForward
from glassformer.core.model import Model
from glassformer.core.norms import LayerNorm, make_norm
from glassformer.core.stack import Stack
from glassformer.core.vision import embeddings, heads
from glassformer.core.vision.convolution.hybrid import (
    ConvolutionMerging,
    ConvolutionStage,
    ConvolutionStem,
)
from glassformer.core.vision.convolution.layers import Neck
from glassformer.core.vision.convolution.resnet import ResNet
from glassformer.core.vision.deformable import DeformableAttention
from glassformer.core.vision.mask_classifier import EncoderMaskClassifier, MaskClassifier
from glassformer.core.vision.pixel_decoder import (
    NUM_LEVELS,
    DeformablePixelDecoder,
    PixelDecoder,
    PyramidPixelDecoder,
)
from glassformer.core.vision.prompts import PromptEncoder
from glassformer.core.vision.segmenter import PromptedMaskHead, PromptedSegmenter
from glassformer.core.vision.stages import PatchMerging, Stages
from glassformer.core.vision.two_tower import TwoTower
from glassformer.core.vision.two_way import TwoWayStack
from glassformer.errors import InvalidValueError, UnsupportedError


def build_image_model(spec: specs.ModelSpec) -> Model:
    """Build a model that exists for images only."""
    match spec:
        case specs.PromptedSegmenterSpec():
            return _build_segmenter(spec)
        case specs.TwoTowerSpec():
            return TwoTower(
                spec,
                image=build_encoder(spec.image),
                text=build_encoder(spec.text),
                head=heads.SimilarityHead(spec.head),
            )
        case specs.EncoderMaskClassifierSpec():
            return EncoderMaskClassifier(
                spec,
                embed=build_embedding(spec.input, spec.encoder.d_model),
                encoder=build_stack(spec.encoder),
                head=_build_mask_head(spec.head, spec.encoder.d_model),
            )
        case specs.MaskClassifierSpec():
            return _build_mask_classifier(spec)
    raise InvalidValueError("spec", spec, "the name of a preset or a spec")


def _build_segmenter(spec: specs.PromptedSegmenterSpec) -> PromptedSegmenter:
    source, width = spec.input, spec.decoder.d_model
    return PromptedSegmenter(
        spec,
        embed=build_embedding(source, spec.encoder.widths[0]),
        encoder=build_layers(spec.encoder),
        neck=Neck(spec.encoder.d_model, spec.neck),
        prompt=PromptEncoder(width, spec.prompt, image_size=source.image_size),
        decoder=TwoWayStack(spec.decoder),
        head=PromptedMaskHead(width, spec.head),
    )


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
        backbone = build_encoder(source.backbone)
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


def build_stages(spec: specs.StagesSpec | specs.HybridStagesSpec) -> Stages:
    """Build a hierarchy of stages."""
    match spec:
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


def build_token_input(
    spec: specs.EncodedImageSpec, d_model: int, fields: dict[str, Any]
) -> image_text.EncodedImageInput:
    """Build the embedding of texts with images. fields: arguments of `TokenInput`."""
    tokens = {name: value for name, value in fields.items() if name in specs.TokensSpec.__dataclass_fields__}
    image = build_encoder(spec.image)
    if isinstance(spec, specs.ImageTokensSpec):
        return image_text.ImageTokenInput(d_model, spec, image=image, **tokens)
    return image_text.ImageMemoryInput(d_model, image=image, **tokens)


def build_image_embedding(spec: specs.InputSpec, d_model: int) -> nn.Module:
    """Build the module that embeds an image, or object queries."""
    match spec:
        case specs.ImagePatchesSpec():
            return embeddings.ImageInput(d_model, spec)
        case specs.ConvolutionStemSpec():
            return ConvolutionStem(d_model, spec)
        case specs.FeatureMapSpec():
            return embeddings.FeatureMapInput(d_model, spec)
        case specs.ObjectQueriesSpec():
            return embeddings.ObjectQueries(d_model, spec)
        case specs.TokensAndPatchesSpec():
            text, image = (build_embedding(part, d_model) for part in spec.parts())
            return image_text.TokensAndPatchesInput(
                d_model, text=text, image=image, image_kinds=spec.image_kinds
            )
    raise UnsupportedError("a model", f"inputs of the kind {spec.kind}")


def build_image_head(
    spec: specs.HeadSpec, d_model: int, source: specs.InputSpec, widths: Sequence[int]
) -> nn.Module:
    """Build a head that exists for images only. widths: of the embedding and of every layer."""
    if isinstance(spec, specs.BackboneSpec) and isinstance(source, specs.ImagePatchesSpec):
        return heads.BackboneHead(spec, widths)
    if type(spec) not in heads.HEADS:
        raise UnsupportedError(f"the {spec.kind} head", f"{source.kind} inputs")
    return heads.HEADS[type(spec)](d_model, spec)
