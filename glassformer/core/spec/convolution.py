"""Specs of convolutional encoders and decoders, and of the autoencoders and UNets that they form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from glassformer.core.spec.architectures import AnyStackSpec, InitSpec, ModelSpec, XavierSpec
from glassformer.core.spec.diffusion import NoiseMapSpec, NoisyMapSpec
from glassformer.core.spec.layers import AttentionSpec, StackSpec
from glassformer.core.spec.text import HeadSpec, InputSpec
from glassformer.errors import ConflictError, InvalidValueError
from glassformer.schema import Spec


@dataclass(frozen=True, kw_only=True)
class GroupNormSpec(Spec):
    """Group norm: normalize the channels of a feature map in groups, over all cells.

    groups: number of groups of channels.
    """

    groups: int = 32
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups < 1:
            raise InvalidValueError("groups", self.groups, "at least 1")


@dataclass(frozen=True, kw_only=True)
class LevelSpec(Spec):
    """Residual layers of two convolutions at one resolution, each followed by attention among the cells.

    width: channels. attention: attention alone, or a stack of Transformer layers; None: convolutions only.
    between: attention stands only between the layers, not after the last one.
    resample: how the resolution changes after them.
    """

    width: int
    num_layers: int
    attention: AttentionSpec | StackSpec | None = None
    between: bool = False
    resample: Literal["down", "up"] | None = None

    @property
    def num_attentions(self) -> int:
        return 0 if self.attention is None else self.num_layers - self.between


LevelSpecs = tuple[LevelSpec, ...]


def input_widths(
    levels: LevelSpecs, width: int, skips: Sequence[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the input channels of every layer of every level.

    levels: in order. width: channels of the input.
    skips: channels of the maps that the layers also read, which are taken from the end.
    """
    rows, remaining = [], list(skips or ())
    for level in levels:
        row = []
        for _ in range(level.num_layers):
            row.append(width + (remaining.pop() if skips is not None else 0))
            width = level.width
        rows.append(tuple(row))
    return tuple(rows)


def _check_widths(levels: LevelSpecs, groups: int) -> None:
    """Raise unless group norm can divide the channels of all levels."""
    for level in levels:
        if level.width < 1 or level.width % groups:
            raise InvalidValueError("widths", level.width, f"a multiple of {groups}, the number of groups")


@dataclass(frozen=True, kw_only=True)
class ImagePixelsSpec(InputSpec):
    """Images of any size, read by a convolution.

    image_size: height and width in training.
    """

    modality = "image"

    image_size: tuple[int, int]
    channels: int = 3

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return self.channels, *self.image_size


@dataclass(frozen=True, kw_only=True)
class ImageHeadSpec(HeadSpec):
    """Images (B, channels, height, width): group norm, SiLU and a convolution.

    channels: of the images.
    """

    yields = "images"

    channels: int = 3


@dataclass(frozen=True, kw_only=True)
class GaussianLatentsSpec(Spec):
    """A normal distribution of every latent value: its mean and the log of its variance.

    channels: of the latents. project, unproject: whether a 1x1 convolution stands before and after them.
    """

    channels: int = 4
    project: bool = True
    unproject: bool = True

    @property
    def width(self) -> int:
        """Numbers in a latent vector."""
        return self.channels


@dataclass(frozen=True, kw_only=True)
class CodebookSpec(Spec):
    """Vector quantization: every latent vector becomes the nearest of the trained codes.

    channels: of the convolutions around the codes. num_codes: number of codes.
    code_dim: width of a code; 1x1 convolutions project to it and back.
    """

    channels: int = 3
    num_codes: int = 256
    code_dim: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_codes < 1 or self.code_dim < 1:
            expected = "at least one code of at least one number"
            raise InvalidValueError("num_codes, code_dim", (self.num_codes, self.code_dim), expected)

    @property
    def width(self) -> int:
        """Numbers in a latent vector."""
        return self.code_dim


@dataclass(frozen=True, kw_only=True)
class AutoencoderSpec(ModelSpec):
    """An autoencoder of images: convolutions to a small map of latents, and back.

    encoder, decoder: their levels, in order.
    latents: normal distributions, or codes. norm: group norms of all convolutions.
    scaling_factor, shift_factor: a diffusion model reads (latents - shift_factor) * scaling_factor.
    """

    architecture = "autoencoder"

    input: ImagePixelsSpec
    encoder: LevelSpecs
    latents: GaussianLatentsSpec | CodebookSpec
    decoder: LevelSpecs
    head: ImageHeadSpec = field(default_factory=ImageHeadSpec)
    norm: GroupNormSpec = field(default_factory=GroupNormSpec)
    scaling_factor: float = 0.18215
    shift_factor: float = 0.0
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=XavierSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_widths((*self.encoder, *self.decoder), self.norm.groups)
        if self.scaling_factor <= 0:
            raise InvalidValueError("scaling_factor", self.scaling_factor, "a number above 0")

    @property
    def stride(self) -> int:
        """Pixels per latent cell and side."""
        return 1 << sum(level.resample == "down" for level in self.encoder)

    @property
    def num_codes(self) -> int | None:
        """Number of codes of the codebook; None without a codebook."""
        return self.latents.num_codes if isinstance(self.latents, CodebookSpec) else None


@dataclass(frozen=True, kw_only=True)
class UNetSpec(ModelSpec):
    """A UNet: levels of falling and of rising resolution; these also read the maps of the former.

    encoder: levels on the way down; the last one, at the lowest resolution, is the middle.
    decoder: levels on the way up; each of their layers reads one map of the way down.
    norm: group norms of the convolutions; those before Transformer layers have an eps of 1e-6.
    linear_projection: whether files store the projections around Transformer layers as matrices, or as 1x1
    convolutions.
    """

    architecture = "UNet"

    input: NoisyMapSpec
    encoder: LevelSpecs
    decoder: LevelSpecs
    head: NoiseMapSpec
    norm: GroupNormSpec = field(default_factory=lambda: GroupNormSpec(eps=1e-5))
    linear_projection: bool = False
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=XavierSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_widths((*self.encoder, *self.decoder), self.norm.groups)
        maps, layers = len(self.skip_widths), sum(level.num_layers for level in self.decoder)
        if maps != layers:
            raise ConflictError(("encoder", "decoder"), f"{maps} maps for {layers} layers")

    @property
    def skip_widths(self) -> tuple[int, ...]:
        """Channels of the maps that the layers of the decoder read: the first input, layers, resampling."""
        down = self.encoder[:-1]
        per_level = ((level.width,) * (level.num_layers + (level.resample is not None)) for level in down)
        return (self.encoder[0].width, *(width for widths in per_level for width in widths))

    def stacks(self) -> dict[str, AnyStackSpec]:
        return {
            f"{path}.levels.{n}.attentions.{m}.stack": level.attention
            for path, levels in (("encoder", self.encoder), ("decoder", self.decoder))
            for n, level in enumerate(levels)
            for m in range(level.num_attentions)
            if isinstance(level.attention, StackSpec)
        }
