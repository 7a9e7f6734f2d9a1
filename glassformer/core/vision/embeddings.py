"""Input embeddings of images: patches, cells of a feature map, and object queries.

B batch, T positions, D d_model, C channels, P prefix tokens, Q object queries or tokens after the patches.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import Dropout, normal_table
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.inputs import ImageInputs, tensor_of
from glassformer.core.masks import Mask
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.vision.convolution.resnet import ResNet
from glassformer.core.vision.grid import (
    GridSinusoids,
    Learned2dPositions,
    Sinusoidal2dPositions,
    cells_to_map,
    map_to_cells,
)
from glassformer.errors import ShapeError, UnsupportedError


class ImageInput(nn.Module):
    """Embed image patches, prepend P trained prefix tokens, add trained positions; then norm and dropout.

    Register tokens are further trained tokens, without positions, between prefix and patches; Q trained
    tokens may follow the patches.
    """

    has_tables = True  # its own parameters are initialized like embeddings

    def __init__(self, d_model: int, spec: specs.ImagePatchesSpec) -> None:
        super().__init__()
        self.image_size, self.patch_size, self.channels = spec.image_size, spec.patch_size, spec.channels
        self.grid, self.interpolate, self.antialias = spec.grid, spec.interpolate, spec.antialias
        self.interpolation = spec.interpolation
        self.num_prefix, self.pad = spec.prefix, spec.pad
        self.num_trained_tokens = spec.prefix + spec.registers + spec.suffix
        self.patch = nn.Conv2d(
            spec.channels, d_model, spec.patch_size, stride=spec.patch_size, bias=spec.bias
        )
        self.patch_norm = None if spec.patch_norm is None else make_norm(spec.patch_norm, d_model)
        self.prefix = nn.Parameter(torch.zeros(1, spec.prefix, d_model)) if spec.prefix else None
        self.suffix = nn.Parameter(torch.zeros(1, spec.suffix, d_model)) if spec.suffix else None
        self.registers = nn.Parameter(torch.zeros(1, spec.registers, d_model)) if spec.registers else None
        self.mask = nn.Parameter(torch.zeros(1, d_model)) if spec.mask_token else None
        tokens = spec.prefix + spec.num_patches + spec.suffix
        learned, tables = spec.position == "learned", spec.layer_positions
        self.position = nn.Parameter(torch.zeros(1, tokens, d_model)) if learned else None
        self.layer_positions = nn.Parameter(torch.zeros(tables, 1, tokens, d_model)) if tables else None
        sines = spec.position == "sinusoidal"
        self.sines = GridSinusoids(d_model, spec.grid, scale=spec.position_scale) if sines else None
        self.norm = None if spec.norm is None else make_norm(spec.norm, d_model)
        self.dropout = Dropout(spec.dropout)

    def forward(self, inputs: Tensor | ImageInputs, *, obs: Observer | None = None) -> EmbeddingOutput:
        """Embed images (B, C, height, width) -> (B, P + registers + patches + Q, D), patches row by row.

        A pixel mask is ignored: patches of padding are tokens like all others.
        """
        images, masked_patches = tensor_of(inputs), getattr(inputs, "masked_patches", None)
        self._check_shape(images)
        if self.pad:  # to whole patches
            height, width = (
                -side % patch for side, patch in zip(images.shape[2:], self.patch_size, strict=True)
            )
            images = nn.functional.pad(images, (0, width, 0, height))
        x, grid = self._project_patches(images.to(self.patch.weight.dtype))
        x = tap(obs, "patch", x)  # (B, patches, D)
        if self.patch_norm is not None:
            x = tap(obs, "patch_norm", self.patch_norm(x))
        if masked_patches is not None:
            if self.mask is None:
                raise UnsupportedError("this model", "masked patches", hint="leave `masked_patches` out")
            x = torch.where(masked_patches[..., None], self.mask.to(x.dtype), x)
        tokens = [part for part in (self.prefix, x, self.suffix) if part is not None]
        x = torch.cat([part.expand(x.shape[0], -1, -1) for part in tokens], 1)  # (B, P + patches + Q, D)
        if self.position is not None:
            x = x + tap(obs, "position", self._positions(self.position, grid)).to(x.dtype)
        if self.sines is not None:
            x = x + tap(obs, "position", self.sines(grid)).to(x.dtype)
        if self.registers is not None:
            prefix, x = x.tensor_split((self.num_prefix,), 1)
            x = torch.cat((prefix, self.registers.expand(x.shape[0], -1, -1).to(x.dtype), x), 1)
        if self.norm is not None:
            x = tap(obs, "norm", self.norm(x))
        tables = self.layer_positions
        layers = None if tables is None else self._positions(tables.flatten(0, 1), grid)[:, None]
        return EmbeddingOutput(tap(obs, "out", self.dropout(x)), Mask(), grid=grid, layer_positions=layers)

    def _check_shape(self, images: Tensor) -> None:
        """Raise unless images are (B, C, height, width), of the configured size unless `interpolate`."""
        fits = images.dim() == 4 and images.shape[1] == self.channels
        if self.interpolate:
            smallest = (1, 1) if self.pad else self.patch_size
            if not fits or any(s < p for s, p in zip(images.shape[2:], smallest, strict=True)):
                expected = f"(B, {self.channels}, height, width), at least one patch {self.patch_size}"
                raise ShapeError("images", images.shape, expected)
        elif not fits or tuple(images.shape[2:]) != self.image_size:
            expected = f"(B, {self.channels}, {self.image_size[0]}, {self.image_size[1]})"
            raise ShapeError("images", images.shape, expected, hint="resize or crop them")

    def _project_patches(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Project the patches of images (B, C, height, width) -> (B, patches, D), and their grid."""
        if not images.is_cuda:
            maps = self.patch(images)  # (B, D, rows, columns)
            return map_to_cells(maps), (maps.shape[2], maps.shape[3])
        # cuDNN has no fast kernel for a convolution with such a stride
        high, wide = self.patch_size
        rows, columns = images.shape[2] // high, images.shape[3] // wide
        cells = (
            images[:, :, : rows * high, : columns * wide]
            .unflatten(2, (rows, high))
            .unflatten(4, (columns, wide))
        )
        cells = cells.permute(0, 2, 4, 1, 3, 5).reshape(len(images), rows * columns, -1)
        return nn.functional.linear(cells, self.patch.weight.flatten(1), self.patch.bias), (rows, columns)

    def _positions(self, tables: Tensor, grid: tuple[int, int]) -> Tensor:
        """Interpolate tables of trained positions (N, T, D) to another grid of patches."""
        if grid == self.grid and self.interpolation != "nearest":
            return tables
        end = self.num_prefix + self.grid[0] * self.grid[1]
        prefix, table, suffix = tables.tensor_split((self.num_prefix, end), 1)
        table = cells_to_map(table, self.grid).float()  # (N, D, rows, columns)
        resized = resize_map(table, grid, self.interpolation, antialias=self.antialias)
        return torch.cat((prefix, map_to_cells(resized).to(prefix.dtype), suffix), 1)


def resize_map(x: Tensor, grid: tuple[int, int], mode: str, *, antialias: bool) -> Tensor:
    """Interpolate a map (N, D, rows, columns) to another grid; see `ImagePatchesSpec.interpolation`."""
    if mode == "nearest":
        rows, columns = (
            nearest_cells(new, old, x.device) for new, old in zip(grid, x.shape[2:], strict=True)
        )
        return x[:, :, rows[:, None], columns]
    aligned = mode == "bilinear"
    return nn.functional.interpolate(x, grid, mode=mode, align_corners=aligned, antialias=antialias)


def nearest_cells(new: int, old: int, device: torch.device) -> Tensor:
    """Return which of `old` cells each of `new` cells takes, rounded as in the published models."""
    share = (torch.arange(new, device=device) * (1.0 / torch.tensor(new, device=device))).clamp(max=1 - 1e-6)
    return torch.bucketize(share, torch.arange(1 / old, 1.0, 1 / old, device=device), right=True)


class FeatureMapInput(nn.Module):
    """Tokens of an image: the cells of a backbone's last feature map, projected to d_model."""

    def __init__(self, d_model: int, spec: specs.FeatureMapSpec) -> None:
        super().__init__()
        self.backbone = ResNet(spec.backbone)
        self.project = nn.Conv2d(spec.backbone.widths[-1], d_model, 1)
        kinds: dict[type, type[nn.Module]] = {
            specs.Sinusoidal2dSpec: Sinusoidal2dPositions,
            specs.Learned2dSpec: Learned2dPositions,
        }
        self.position = kinds[type(spec.position)](d_model, **vars(spec.position))

    def forward(self, inputs: Tensor | ImageInputs, *, obs: Observer | None = None) -> EmbeddingOutput:
        """Embed images (B, C, height, width) -> (B, rows * columns, D) with their position embeddings."""
        images, pixel_mask = tensor_of(inputs), getattr(inputs, "pixel_mask", None)
        if images.dim() != 4 or images.shape[1] != self.backbone.channels:
            raise ShapeError("images", images.shape, f"(B, {self.backbone.channels}, height, width)")
        features = self.backbone(images.to(self.project.weight.dtype), obs=scope(obs, "backbone"))[-1]
        x = tap(obs, "project", map_to_cells(self.project(features)))  # (B, rows * columns, D)
        grid: tuple[int, int] = (features.shape[2], features.shape[3])
        real = None
        if pixel_mask is not None:
            if pixel_mask.shape != (images.shape[0], *images.shape[2:]):
                expected = f"{(images.shape[0], *images.shape[2:])} as the images"
                raise ShapeError("pixel_mask", pixel_mask.shape, expected)
            real = nn.functional.interpolate(pixel_mask[None].float(), grid)[0] > 0  # nearest neighbor
        position = tap(obs, "position", self.position(grid, real, x.device))
        mask = Mask(padding=None if real is None else real.flatten(1))
        return EmbeddingOutput(tap(obs, "out", x), mask, grid=grid, position_embeddings=position)


class ObjectQueries(nn.Module):
    """Object queries: content (zeros or trained) and trained position embeddings."""

    def __init__(self, d_model: int, spec: specs.ObjectQueriesSpec) -> None:
        super().__init__()
        count = spec.num_queries
        self.position = normal_table(count, d_model, std=1.0)
        self.content = normal_table(count, d_model, std=1.0) if spec.content == "learned" else None

    def forward(self, batch: int, *, obs: Observer | None = None) -> EmbeddingOutput:
        """Return the queries (B, Q, D) of `batch` images, and their position embeddings (1, Q, D)."""
        content = torch.zeros_like(self.position) if self.content is None else self.content
        x = tap(obs, "out", content.expand(batch, -1, -1))
        return EmbeddingOutput(x, Mask(), position_embeddings=tap(obs, "position", self.position[None]))
