"""Specs of diffusion models: noisy latents with a time and a class or a text, and the noise in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from glassformer.core.spec.images import ImagePatchesSpec
from glassformer.core.spec.layers import ModulationKind
from glassformer.core.spec.text import HeadSpec, InputSpec, Output
from glassformer.errors import InvalidValueError, MissingValueError
from glassformer.schema import Spec


@dataclass(frozen=True, kw_only=True)
class TimestepSpec(Spec):
    """Sines and cosines of a time step, then two dense layers with SiLU.

    width: number of sines and cosines. cosines_first: whether the cosines come before the sines.
    divisor: what divides the exponents of the frequencies: half of the width, or one less, with which the
    lowest frequency is exactly 1/10000.
    """

    width: int = 256
    cosines_first: bool = True
    divisor: Literal["half", "half_minus_1"] = "half"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2 or self.width < 4:
            raise InvalidValueError("Timestep.width", self.width, "an even number from 4 on")


@dataclass(frozen=True, kw_only=True)
class ConditionedLatentsSpec(InputSpec, abstract=True):
    """Base of the specs of noisy latents (or images) with a time step, and with a class, a text or both.

    time: embedding of the time step.
    num_classes: number of classes; one more label, the last, means no class. label_dropout: probability of
    that label in training, for classifier-free guidance.
    text_dim: width of the text vectors that cross-attention attends to.
    """

    modality = "latents"

    time: TimestepSpec = field(default_factory=TimestepSpec)
    num_classes: int | None = None
    label_dropout: float = 0.1
    text_dim: int | None = None

    @property
    def patch_size(self) -> tuple[int, int]:
        """Rows and columns of the latents that become one token."""
        return 1, 1


@dataclass(frozen=True, kw_only=True)
class NoisyMapSpec(ConditionedLatentsSpec):
    """Noisy latents (or images) of any size, read by a convolution; the condition may also be the time alone.

    image_size: height and width in training. channels: of the latents.
    time, num_classes, label_dropout, text_dim: as in `NoisyLatentsSpec`.
    """

    image_size: tuple[int, int]
    channels: int = 4

    @property
    def memory_dim(self) -> int | None:
        return self.text_dim

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return self.channels, *self.image_size


@dataclass(frozen=True, kw_only=True)
class NoisyLatentsSpec(ConditionedLatentsSpec):
    """Patches of noisy latents (or images), with a time step and a class, a text or both as condition.

    Latents of a video are patches of every frame; the sines of its frames are added after the first layer.

    patches: of the latents. time: embedding of the time step.
    num_classes: number of classes; one more label, the last, means no class. label_dropout: probability of
    that label in training, for classifier-free guidance.
    text_dim: width of the text vectors that cross-attention attends to. project_text: whether two dense
    layers project them to d_model first.
    modulation: what the adaptive norms read: the condition itself, projected by each layer, or six vectors
    that a dense layer computes from it once for all layers.
    num_frames: largest number of frames of a video; None: the latents are those of an image.
    """

    patches: ImagePatchesSpec
    project_text: bool = True
    modulation: ModulationKind = "layer"
    num_frames: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patches.prefix or self.patches.registers or self.patches.suffix:
            raise InvalidValueError("NoisyLatents.patches", "trained tokens", "patches alone")
        if self.num_classes is None and self.text_dim is None:
            raise MissingValueError("num_classes or text_dim", "by a diffusion model with a condition")

    @property
    def patch_size(self) -> tuple[int, int]:
        return self.patches.patch_size

    @property
    def memory_dim(self) -> int | None:
        return None if self.project_text else self.text_dim

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        channels, *sides = self.patches.example_shape(length, width)
        return channels, *([] if self.num_frames is None else [self.num_frames]), *sides

    def num_tokens(self, shape: tuple[int, ...]) -> int:  # type: ignore[override]
        return math.prod(shape[2:-2]) * self.patches.num_tokens((*shape[:2], *shape[-2:]))


@dataclass(frozen=True, kw_only=True)
class NoiseMapSpec(HeadSpec):
    """The noise (or velocity) of every latent pixel: group norm, SiLU and a convolution.

    channels: of the result.
    """

    yields: ClassVar[Output | None] = "noise"

    channels: int


@dataclass(frozen=True, kw_only=True)
class UnpatchifySpec(HeadSpec):
    """The noise (or velocity) of every latent pixel: adaptive norm, a dense layer, patches to an image.

    channels: of the result; twice those of the latents if it also has their variance.
    modulation: as in the norms of the layers.
    """

    yields: ClassVar[Output | None] = "noise"

    channels: int
    patch_size: tuple[int, int]
    eps: float = 1e-6
    modulation: ModulationKind = "layer"
