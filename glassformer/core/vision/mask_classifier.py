"""Mask classification: object queries, each of which predicts a class and a binary mask.

`EncoderMaskClassifier` is an image encoder alone: the queries join the patches in its last layers.
`MaskClassifier` is a backbone, a pixel decoder that merges its feature maps into pixel embeddings, and a
Transformer decoder of the queries.

With masked attention, a query attends only to the cells that are inside the mask that the layer before
predicted.

B batch, Q object queries, L labels, D d_model, S cells of a feature map, C channels, P prefix tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import backend
from glassformer.core import spec as specs
from glassformer.core.backend import normal_table
from glassformer.core.block import LayerContext
from glassformer.core.embeddings import EmbeddingOutput
from glassformer.core.heads import image_patches
from glassformer.core.inputs import ImageInputs, Memory, embed_inputs, tensor_of
from glassformer.core.kernels import Kernel
from glassformer.core.masks import Mask
from glassformer.core.model import Model
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import Grid
from glassformer.core.stack import Stack
from glassformer.core.vision.convolution.layers import Upscale
from glassformer.core.vision.embeddings import ObjectQueries
from glassformer.core.vision.grid import Sinusoidal2dPositions, cells_to_map, map_to_cells
from glassformer.core.vision.heads import MaskHead, MaskOutput
from glassformer.core.vision.pixel_decoder import DeformablePixelDecoder, PixelDecoder


def cell_logits(masks: Tensor, grid: Grid) -> Tensor:
    """Interpolate mask logits (B, Q, h, w) to the cells of a grid, without gradient: (B, Q, S)."""
    return F.interpolate(masks.detach(), grid, mode="bilinear", align_corners=False).flatten(2)


class EncoderMaskClassifier(Model):
    """Encoder-only mask classification: object queries join the image patches in the last layers.

    embed: input embedding of the image
    encoder: image encoder; its final norm is applied before every prediction
    upscale: layers that double the resolution of the patches
    head: classes and masks

    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn, wiring="pre")
    >>> model = build_model(specs.EncoderMaskClassifierSpec(
    ...     input=specs.ImagePatchesSpec(image_size=(32, 32), patch_size=(8, 8)),
    ...     encoder=specs.StackSpec(d_model=16, num_layers=3, block=block, final_norm=specs.LayerNormSpec()),
    ...     head=specs.MasksSpec(num_labels=5, mask_dim=16), num_queries=7, query_layers=2))
    >>> output = model(torch.randn(2, 3, 32, 32))
    >>> output.logits.shape, output.masks.shape
    (torch.Size([2, 7, 6]), torch.Size([2, 7, 16, 16]))
    """

    spec: specs.EncoderMaskClassifierSpec
    mask_probs: Tensor

    def __init__(
        self,
        spec: specs.EncoderMaskClassifierSpec,
        *,
        embed: nn.Module,
        encoder: Stack,
        head: MaskHead,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed, self.encoder = embed, encoder
        width = spec.encoder.d_model
        self.queries = normal_table(spec.num_queries, width)
        self.upscale = nn.ModuleList(Upscale(width, head.mask.activation) for _ in range(spec.num_upscale))
        self.head = head
        # share of the queries whose attention is masked, in each of the last layers
        self.register_buffer("mask_probs", torch.ones(spec.query_layers))

    def forward(
        self, images: Tensor | ImageInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> MaskOutput:
        """Images (B, C, height, width) -> classes and masks; in training also those before each query layer.

        A pixel mask is ignored: these models see the padding.
        """
        embedded = embed_inputs(self.embed, images, obs=scope(obs, "embed"))
        embedded = embedded._replace(x=backend.residual_stream(embedded.x))
        encoder, grid = scope(obs, "encoder"), embedded.grid
        assert grid is not None
        joint = len(self.encoder.blocks) - self.spec.query_layers
        unmasked = self.training or self.mask_probs.is_meta
        probs: list[float] = [1.0] * self.spec.query_layers if unmasked else self.mask_probs.tolist()
        outputs: list[MaskOutput] = []
        mask = Mask()

        def join_and_mask(n: int, x: Tensor, context: LayerContext) -> tuple[Tensor, LayerContext]:
            """Add the queries before layer `joint`; from there on, mask what they attend to."""
            nonlocal mask
            if n < joint:
                return x, context
            if n == joint:
                queries = self.queries.to(x.dtype).expand(x.shape[0], -1, -1)
                x = torch.cat((queries, x), 1)  # (B, Q + P + S, D)
            if probs[n - joint] > 0:
                outputs.append(self._predict(x, grid, None))
                allowed = self._attention_mask(x, outputs[-1].masks, grid, self.mask_probs[n - joint])
                mask = Mask.of(allowed)
            source = EmbeddingOutput(x, mask, grid=grid)
            return x, self.encoder.prepare(source, kernel=kernel, obs=encoder)[n]

        layers = self.encoder.prepare(embedded, kernel=kernel, obs=encoder)
        last = self._predict(self.encoder.run(embedded.x, layers, join_and_mask), grid, obs)
        return last._replace(layers=tuple(outputs)) if self.training else last

    def _predict(self, x: Tensor, grid: Grid, obs: Observer | None) -> MaskOutput:
        """Predict from the hidden states (B, Q + P + S, D)."""
        assert self.encoder.final_norm is not None
        x = tap(obs, "encoder.final_norm", self.encoder.final_norm(x))
        cells = cells_to_map(image_patches(x, grid), grid)  # (B, D, rows, columns)
        for layer in self.upscale:
            cells = layer(cells)
        output: MaskOutput = self.head(x[:, : self.spec.num_queries], cells, obs=scope(obs, "head"))
        return output

    def _attention_mask(self, x: Tensor, masks: Tensor, grid: Grid, prob: Tensor) -> Tensor:
        """Return which tokens may attend to which, (B, T, T).

        Queries attend to the patches inside their masks, except for a random share 1 - prob of them.
        """
        inside = cell_logits(masks, grid) > 0
        unmasked = torch.rand(inside.shape[:2], device=x.device) > prob
        allowed = x.new_ones(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool)
        allowed[:, : inside.shape[1], x.shape[1] - inside.shape[2] :] = inside | unmasked[..., None]
        return allowed


class MaskClassifier(Model):
    """Mask classification with a backbone, a pixel decoder and a decoder of object queries.

    embed: backbone and pixel decoder
    queries: object queries
    decoder: Transformer decoder; its final norm is applied before every prediction
    head: classes and masks

    >>> from glassformer.core.build import build_model
    >>> attention, ffn = specs.AttentionSpec(num_heads=4), specs.FeedForwardSpec(d_ff=64)
    >>> block = specs.BlockSpec(attention=attention, cross_attention=attention, feed_forward=ffn)
    >>> resnet = specs.ResNetSpec(stem_width=8, widths=(8, 16, 16, 32), depths=(1, 1, 1, 1), layer="basic")
    >>> model = build_model(specs.MaskClassifierSpec(
    ...     input=specs.FeaturePyramidSpec(backbone=resnet, width=32),
    ...     target=specs.ObjectQueriesSpec(num_queries=7), head=specs.MasksSpec(num_labels=5, mask_dim=16),
    ...     decoder=specs.StackSpec(d_model=32, num_layers=2, block=block, final_norm=specs.LayerNormSpec())))
    >>> output = model(torch.randn(2, 3, 64, 96))
    >>> output.logits.shape, output.masks.shape
    (torch.Size([2, 7, 6]), torch.Size([2, 7, 16, 24]))
    """

    spec: specs.MaskClassifierSpec

    def __init__(
        self,
        spec: specs.MaskClassifierSpec,
        *,
        embed: PixelDecoder,
        queries: ObjectQueries,
        decoder: Stack,
        head: MaskHead,
    ) -> None:
        super().__init__()
        self.spec = spec
        width, levels = spec.decoder.d_model, embed.memory_channels
        self.masked = isinstance(embed, DeformablePixelDecoder)
        self.embed, self.queries = embed, queries
        self.project = nn.ModuleList(
            nn.Conv2d(channels, width, 1) if spec.project_memory or channels != width else nn.Identity()
            for channels in levels
        )
        self.level = normal_table(len(levels), width) if self.masked else None
        self.position = Sinusoidal2dPositions(width)
        self.decoder, self.head = decoder, head

    def forward(
        self, images: Tensor | ImageInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> MaskOutput:
        """Images (B, C, height, width) -> classes and masks; in training also those of earlier layers.

        A pixel mask is ignored: these models see the padding.
        """
        pixels = tensor_of(images)
        embeddings, levels = self.embed(pixels, obs=scope(obs, "embed"))
        memories = [self._memory(n, level) for n, level in enumerate(levels)]
        queries = self.queries(pixels.shape[0], obs=scope(obs, "queries"))
        x = backend.residual_stream(queries.x.to(memories[0].x.dtype))
        outputs: list[MaskOutput] = []

        def attend_to_level(n: int, x: Tensor, context: LayerContext) -> tuple[Tensor, LayerContext]:
            """Attend to the levels in turn, within the masks that the layer before predicted."""
            memory, level = memories[n % len(levels)], levels[n % len(levels)]
            if self.masked or (self.training and n > 0):
                outputs.append(self._predict(x, embeddings, None))
            if self.masked:
                inside = cell_logits(outputs[-1].masks, (level.shape[2], level.shape[3])) >= 0
                inside = inside | ~inside.any(-1, keepdim=True)  # an empty mask attends to all cells
                memory = memory._replace(mask=Mask.of(inside))
            return x, self._prepare(queries._replace(x=x), memory, kernel, obs)[n]

        layers = self._prepare(queries._replace(x=x), memories[0], kernel, obs)
        last = self._predict(self.decoder.run(x, layers, attend_to_level), embeddings, obs)
        return last._replace(layers=tuple(outputs)) if self.training else last

    def _memory(self, n: int, level: Tensor) -> Memory:
        """Return the cells of a feature map (B, C, h, w), to which the queries attend."""
        cells = map_to_cells(self.project[n](level))
        if self.level is not None:
            cells = cells + self.level[n].to(cells.dtype)
        return Memory(
            cells, Mask(), position=self.position((level.shape[2], level.shape[3]), None, level.device)
        )

    def _prepare(
        self, queries: EmbeddingOutput, memory: Memory, kernel: Kernel, obs: Observer | None
    ) -> list[LayerContext]:
        return self.decoder.prepare(queries, memory, kernel=kernel, obs=scope(obs, "decoder"))

    def _predict(self, x: Tensor, embeddings: Tensor, obs: Observer | None) -> MaskOutput:
        """Predict from queries x (B, Q, D) and pixel embeddings (B, C, h, w)."""
        assert self.decoder.final_norm is not None
        x = tap(obs, "decoder.final_norm", self.decoder.final_norm(x))
        output: MaskOutput = self.head(x, embeddings, obs=scope(obs, "head"))
        return output
