"""What a model reads: tokens, image patches, series patches, vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glassformer.core.spec.checks import Part
from glassformer.core.spec.parts import AddedPosition, Norm
from glassformer.errors import InvalidValueError


@dataclass(frozen=True, kw_only=True)
class Tokens(Part):
    """Token ids to vectors, times `scale`, plus position and token type, normed if `norm`."""

    vocab_size: int
    scale: float = 1.0
    position: AddedPosition | None = None
    types: int | None = None
    norm: Norm | None = None
    dropout: float = 0.0
    pad_id: int | None = None


@dataclass(frozen=True, kw_only=True)
class ImagePatches(Part):
    """An image (B, C, height, width) cut into squares, each a vector, after `prefix` learned tokens."""

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int = 3
    prefix: int = 1
    bias: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(i < p or p < 1 for i, p in zip(self.image_size, self.patch_size, strict=True)):
            wanted = f"at least 1 and at most the image_size {self.image_size}"
            raise InvalidValueError("patch_size", self.patch_size, wanted)

    @property
    def num_patches(self) -> int:
        (height, width), (ph, pw) = self.image_size, self.patch_size
        return (height // ph) * (width // pw)


@dataclass(frozen=True, kw_only=True)
class SeriesPatches(Part):
    """Series (B, time, channels) scaled, cut into overlapping pieces, each a vector; channels apart."""

    context_length: int
    patch_length: int
    stride: int
    channels: int
    position: Literal["learned", "sincos"] = "sincos"
    scaling: Literal["std", "mean", "none"] = "std"
    embedding: Literal["shared", "per_channel"] = "shared"
    prefix: int = 0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context_length < self.patch_length:
            wanted = f"at least patch_length {self.patch_length}"
            raise InvalidValueError("context_length", self.context_length, wanted)

    @property
    def num_patches(self) -> int:
        return (self.context_length - self.patch_length) // self.stride + 1


@dataclass(frozen=True, kw_only=True)
class Vectors(Part):
    """Vectors (B, T, d_model) handed in as they are."""


Input = Tokens | ImagePatches | SeriesPatches | Vectors
