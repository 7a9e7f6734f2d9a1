"""Input embeddings (B, T, D) of token ids, image patches or vectors.

B batch, T positions, D d_model, C channels, P prefix tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import Dropout, normal_table
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, tap
from glassformer.core.positions import LearnedPositions, SinusoidalPositions
from glassformer.errors import InvalidValueError, ShapeError, UnsupportedError


class EmbeddingOutput(NamedTuple):
    """Embedded vectors (B, T, D); for a series also the shift and scale, which the head reverts.

    grid: rows and columns of image patches, which come after the prefix tokens.
    """

    x: Tensor
    loc: Tensor | None = None
    scale: Tensor | None = None
    grid: tuple[int, int] | None = None


class TokenInput(nn.Module):
    """Embed tokens: token embeddings times `scale`, plus positions and token types; then norm and dropout.

    embedding_dim: width of the embeddings, if a dense layer projects them to d_model; None: d_model

    >>> TokenInput(16, vocab_size=100)(torch.tensor([[5, 7, 9]])).x.shape
    torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        d_model: int,
        *,
        vocab_size: int,
        embedding_dim: int | None = None,
        scale: float = 1.0,
        position: SinusoidalPositions | LearnedPositions | None = None,
        types: int | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        pad_id: int | None = None,
    ) -> None:
        super().__init__()
        self.scale, self.pad_id = scale, pad_id
        width = embedding_dim or d_model
        self.token = nn.Embedding(vocab_size, width, _weight=normal_table(vocab_size, width))
        self.position = position
        self.kind = nn.Embedding(types, width, _weight=normal_table(types, width)) if types else None
        self.norm = norm
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(embedding_dim, d_model) if embedding_dim else None

    def forward(
        self,
        ids: Tensor,
        *,
        positions: Tensor | None = None,
        last: int | None = None,
        types: Tensor | None = None,
        obs: Observer | None = None,
    ) -> EmbeddingOutput:
        """Embed ids (B, T) with positions and types (B|1, T) -> (B, T, D).

        last: an upper bound of the positions, if known.
        """
        _check_ids(ids, self.token.num_embeddings)
        x = self.token(ids)
        if self.scale != 1.0:
            x = x * self.scale
        x = tap(obs, "token", x)
        if self.position is not None:
            if positions is None:
                positions = torch.arange(ids.shape[1], device=ids.device)[None]
            x = x + tap(obs, "position", self.position(positions, last)).to(x.dtype)
        if self.kind is not None:
            token_types = torch.zeros_like(ids) if types is None else types
            _check_types(token_types, ids, self.kind.num_embeddings)
            x = x + tap(obs, "kind", self.kind(token_types))
        elif types is not None:
            raise UnsupportedError("this model", "token types", hint="leave `types` out")
        if self.norm is not None:
            x = tap(obs, "norm", self.norm(x))
        x = self.dropout(x)
        return EmbeddingOutput(tap(obs, "out", x if self.project is None else self.project(x)))


def check_token_ids(ids: Tensor) -> None:
    """Raise unless `ids` are integer token ids (B, T)."""
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise ShapeError(f"a tensor of token ids ({ids.dtype})", ids.shape, "integers (B, T)")


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    """Raise if an id is out of range; on a GPU values are not checked, to avoid a synchronization."""
    check_token_ids(ids)
    if ids.is_cpu and ids.numel() and not torch.compiler.is_compiling():
        low, high = (int(v) for v in ids.aminmax())
        if low < 0 or high >= vocab_size:
            wrong = low if low < 0 else high
            raise InvalidValueError(
                "token id",
                wrong,
                f"0 to {vocab_size - 1}",
                hint="use the tokenizer of this model",
            )


def _check_types(types: Tensor, ids: Tensor, count: int) -> None:
    """Raise if the token types do not match the ids; their values are checked only on a CPU."""
    fits = types.shape in (ids.shape, (1, ids.shape[1])) and types.dtype in (torch.int64, torch.int32)
    if fits and types.is_cpu and types.numel() and not torch.compiler.is_compiling():
        low, high = (int(v) for v in types.aminmax())
        fits = low >= 0 and high < count
    if not fits:
        expected = f"integers from 0 to {count - 1} in the shape of the ids {tuple(ids.shape)}"
        raise ShapeError("types", types.shape, expected)


class ImageInput(nn.Module):
    """Embed image patches, prepend P trained prefix tokens, add trained positions; then norm and dropout."""

    def __init__(self, d_model: int, spec: specs.ImagePatchesSpec) -> None:
        super().__init__()
        self.image_size, self.patch_size, self.channels = spec.image_size, spec.patch_size, spec.channels
        self.grid, self.interpolate = spec.grid, spec.interpolate
        self.patch = nn.Conv2d(
            spec.channels, d_model, spec.patch_size, stride=spec.patch_size, bias=spec.bias
        )
        self.prefix = nn.Parameter(torch.zeros(1, spec.prefix, d_model))
        tokens = spec.prefix + spec.num_patches
        learned = spec.position == "learned"
        self.position = nn.Parameter(torch.zeros(1, tokens, d_model)) if learned else None
        self.norm = None if spec.norm is None else make_norm(spec.norm, d_model)
        self.dropout = Dropout(spec.dropout)

    def forward(self, images: Tensor, *, obs: Observer | None = None) -> EmbeddingOutput:
        """Embed images (B, C, height, width) -> (B, P + patches, D), patches row by row."""
        self._check_shape(images)
        patches = self.patch(images.to(self.patch.weight.dtype))  # (B, D, rows, columns)
        grid: tuple[int, int] = (patches.shape[2], patches.shape[3])
        x = tap(obs, "patch", patches.flatten(2).transpose(1, 2))  # (B, patches, D)
        x = torch.cat((self.prefix.expand(x.shape[0], -1, -1), x), 1)  # (B, P + patches, D)
        if self.position is not None:
            table = self.position if grid == self.grid else self._interpolated_positions(grid)
            x = x + tap(obs, "position", table).to(x.dtype)
        if self.norm is not None:
            x = tap(obs, "norm", self.norm(x))
        return EmbeddingOutput(tap(obs, "out", self.dropout(x)), grid=grid)

    def _check_shape(self, images: Tensor) -> None:
        """Raise unless images are (B, C, height, width), of the configured size unless `interpolate`."""
        fits = images.dim() == 4 and images.shape[1] == self.channels
        if self.interpolate:
            if not fits or any(s < p for s, p in zip(images.shape[2:], self.patch_size, strict=True)):
                expected = f"(B, {self.channels}, height, width), at least one patch {self.patch_size}"
                raise ShapeError("images", images.shape, expected)
        elif not fits or tuple(images.shape[2:]) != self.image_size:
            expected = f"(B, {self.channels}, {self.image_size[0]}, {self.image_size[1]})"
            raise ShapeError("images", images.shape, expected, hint="resize or crop them")

    def _interpolated_positions(self, grid: tuple[int, int]) -> Tensor:
        """Interpolate the trained positions of the patches to another grid (bicubic)."""
        assert self.position is not None
        prefix, patches = self.position.split((self.prefix.shape[1], self.grid[0] * self.grid[1]), 1)
        table = patches.unflatten(1, self.grid).permute(0, 3, 1, 2)  # (1, D, rows, columns)
        resized = nn.functional.interpolate(table.float(), grid, mode="bicubic", align_corners=False)
        return torch.cat((prefix, resized.to(prefix.dtype).flatten(2).transpose(1, 2)), 1)


class VectorInput(nn.Module):
    """Vectors (B, T, D), used unchanged."""

    def forward(self, x: Tensor, *, obs: Observer | None = None) -> EmbeddingOutput:
        return EmbeddingOutput(tap(obs, "out", x))
