"""Build modules from specs; only this file, and those of images and series, branch on a spec's class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from glassformer.core import embeddings, heads, positions
from glassformer.core import spec as specs
from glassformer.core.attention import make_attention
from glassformer.core.backend import Linear
from glassformer.core.block import Block
from glassformer.core.feedforward import FeedForward
from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly, Model
from glassformer.core.norms import LayerScale, make_norm
from glassformer.core.positions import AttentionPosition
from glassformer.core.stack import Stack
from glassformer.errors import UnsupportedError


def build_model(spec: specs.ModelSpec) -> Model:
    """Build a model from its spec, with freshly initialized weights.

    Under `torch.device("meta")` the model takes no memory; `fill_meta_model` then sets its weights.
    """
    model: Model
    match spec:
        case specs.EncoderDecoderSpec():
            memory_dim = spec.decoder.d_model if spec.connector else spec.encoder.d_model
            model = _decoder_class(spec)(
                spec,
                **embeddings_and_head(spec),
                encoder=build_layers(spec.encoder, memory_dim=spec.source.memory_dim),
                connector=Linear(spec.encoder.d_model, memory_dim) if spec.connector else None,
                decoder=build_stack(spec.decoder, memory_dim=memory_dim),
            )
        case specs.EncoderOnlySpec():
            model = build_encoder(spec)
        case specs.DecoderOnlySpec():
            model = DecoderOnly(
                spec,
                embed=build_embedding(spec.input, spec.decoder.d_model),
                decoder=build_stack(spec.decoder),
                head=build_head(spec.head, spec.decoder.d_model, spec.input),
            )
        case specs.AutoencoderSpec():
            from glassformer.core.diffusion.autoencoder import Autoencoder

            model = Autoencoder(spec)
        case specs.UNetSpec():
            from glassformer.core.diffusion.unet import UNet

            model = UNet(spec)
        case specs.DiffusionModelSpec():
            from glassformer.core.diffusion.model import DiffusionModel

            return DiffusionModel(spec, **_parts(spec))
        case specs.ImageTokensModelSpec():
            from glassformer.core.image_tokens import ImageTokensModel

            return ImageTokensModel(spec, **_parts(spec))
        case _:
            from glassformer.core.vision.build import build_image_model  # here: text models need no vision

            model = build_image_model(spec)
    if not any(parameter.is_meta for parameter in model.parameters()):
        initialize(model, spec.init)
    return model


def _parts(spec: specs.ModelSpec) -> dict[str, Any]:
    """Build the models that a model consists of; they are initialized."""
    return {name: build_model(part) for name, part in spec.children().items()}


def _decoder_class(spec: specs.EncoderDecoderSpec) -> type[EncoderDecoder]:
    if not spec.target.trained:
        return EncoderDecoder
    from glassformer.core.vision.query_decoder import QueryDecoder

    return QueryDecoder


def embeddings_and_head(spec: specs.EncoderDecoderSpec) -> dict[str, nn.Module]:
    """Build what is before and after the stacks of an encoder-decoder."""
    return {
        "src_embed": build_embedding(spec.source, spec.encoder.widths[0]),
        "tgt_embed": build_embedding(spec.target, spec.decoder.d_model),
        "head": build_head(spec.head, spec.decoder.d_model, spec.target),
    }


def build_encoder(spec: specs.EncoderOnlySpec) -> EncoderOnly:
    """Build an encoder-only model, without initializing it."""
    return EncoderOnly(
        spec,
        embed=build_embedding(spec.input, spec.encoder.widths[0]),
        encoder=build_layers(spec.encoder, memory_dim=spec.input.memory_dim),
        head=build_head(spec.head, spec.encoder.d_model, spec.input, widths=spec.encoder.widths),
    )


def build_layers(spec: specs.EncoderSpec | specs.HybridStagesSpec, *, memory_dim: int | None = None) -> Any:
    """Build the layers of an encoder: a stack, or a hierarchy of stages. memory_dim: see `build_stack`."""
    if isinstance(spec, specs.StackSpec):
        return build_stack(spec, memory_dim=memory_dim)
    from glassformer.core.vision.build import build_stages

    return build_stages(spec)


def fill_meta_model(model: nn.Module, tensors: dict[str, torch.Tensor], device: str = "cpu") -> None:
    """Set the parameters and buffers of a model on the meta device; computed buffers are recomputed."""
    for module in model.modules():
        buffers = [n for n, b in module.named_buffers(recurse=False) if b.is_meta]
        for key in buffers:
            buffer = getattr(module, key)
            setattr(module, key, torch.zeros(buffer.shape, dtype=buffer.dtype, device=device))
        if buffers and getattr(module, "computes_buffers", False):
            module.reset_parameters()  # type: ignore[operator]
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


def matches_spec(model: Model) -> bool:
    """Return whether a model has the weights that its spec describes; false if a part was replaced.

    LoRA adapters do not count: they are merged when the model is saved.
    """
    with torch.device("meta"):
        described = unique_state_dict(build_model(model.spec))
    shapes = {name: t.shape for name, t in unique_state_dict(model).items() if ".lora_" not in name}
    return shapes == {name: tensor.shape for name, tensor in described.items()}


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


def build_block(
    spec: specs.BlockSpec, d_model: int, memory_dim: int | None = None, *, drop_path: float = 0.0
) -> Block:
    """Build one layer. drop_path: its stochastic depth rate."""
    cross = spec.cross_attention
    gated = spec.feed_forward.gated
    return Block(
        self_attn=make_attention(d_model, spec.attention),
        cross_attn=make_attention(d_model, cross, memory_dim=memory_dim) if cross else None,
        ffn=FeedForward(d_model, gated=gated, **vars(spec.feed_forward)),
        wiring=spec.wiring,
        dropout=spec.dropout,
        local_conv=_local_convolution(d_model, spec.local_conv) if spec.local_conv else None,
        drop_path=drop_path,
        order=spec.order,
        **_norms_and_factors(spec, d_model),
    )


def _norms_and_factors(spec: specs.BlockSpec, d_model: int) -> dict[str, Any]:
    """Return the arguments of a block that create its norms and the factors of its sublayers."""
    norm, init = spec.norm, spec.layer_scale
    if isinstance(norm, specs.AdaptiveNormSpec):
        from glassformer.core.diffusion.modulation import adaptive_parts

        return adaptive_parts(norm, d_model, crosses=spec.cross_attention is not None)
    return {
        "norm": lambda: make_norm(norm, d_model),
        "layer_scale": None if init is None else lambda: LayerScale(d_model, init=init),
    }


def _local_convolution(d_model: int, size: int) -> nn.Module:
    from glassformer.core.vision.convolution.layers import CellConvolution

    return CellConvolution(d_model, d_model, size, groups=d_model)


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
        case _:
            raise UnsupportedError("a stack", f"positions of the kind {position.kind}")


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
            if not isinstance(spec, specs.EncodedImageSpec):
                return embeddings.TokenInput(d_model, **fields)
            from glassformer.core.vision.build import build_token_input  # here: text models need no vision

            return build_token_input(spec, d_model, fields)
        case specs.VectorsSpec():
            return embeddings.VectorInput()
        case specs.SeriesPatchesSpec():
            from glassformer.core.series.patches import SeriesInput

            return SeriesInput(d_model, spec)
        case specs.NoisyLatentsSpec():
            from glassformer.core.diffusion.latents import NoisyLatentsInput

            return NoisyLatentsInput(d_model, spec)
    from glassformer.core.vision.build import build_image_embedding

    return build_image_embedding(spec, d_model)


def build_head(
    spec: specs.HeadSpec, d_model: int, source: specs.InputSpec, *, widths: Sequence[int] = ()
) -> nn.Module:
    """Build the head on top of the last hidden states. widths: of the embedding and of every layer."""
    if isinstance(source, specs.SeriesPatchesSpec):
        from glassformer.core.series.patches import build_series_head

        return build_series_head(spec, d_model, source)
    if isinstance(source, specs.NoisyLatentsSpec) and isinstance(spec, specs.UnpatchifySpec):
        from glassformer.core.diffusion.latents import UnpatchifyHead

        return UnpatchifyHead(d_model, spec)
    if isinstance(spec, specs.LanguageModelSpec):
        return heads.LanguageModelHead(d_model, **vars(spec))
    if type(spec) in heads.HEADS:
        return heads.HEADS[type(spec)](d_model, spec)
    from glassformer.core.vision.build import build_image_head

    return build_image_head(spec, d_model, source, widths)


# ---- initialization ---------------------------------------------------------------------------------------

_POSITION_TABLES = (positions.LearnedPositions, positions.RelativeBias, positions.DisentangledPositions)
_TABLES = (nn.Embedding, *_POSITION_TABLES, heads.VocabularyHead)
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
        if getattr(module, "initializes_itself", False):
            module.reset_parameters()  # type: ignore[operator]


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
    elif getattr(module, "has_tables", False):  # prefix tokens, learned positions, probe
        for table in module.parameters(recurse=False):
            nn.init.normal_(table, std=std)
