"""Promptable segmentation: encode an image once, then decode points, boxes and masks to masks.

B images, N prompts per image, M masks per prompt, P points per prompt, D d_model, h and w rows and columns of
the image embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.backend import ACTIVATIONS, normal_table
from glassformer.core.feedforward import MLP
from glassformer.core.inputs import ImageInputs, embed_inputs
from glassformer.core.kernels import Kernel
from glassformer.core.model import Model
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.stack import Stack
from glassformer.core.vision.convolution.layers import ChannelLayerNorm, Neck
from glassformer.core.vision.grid import cells_to_map, map_to_cells
from glassformer.core.vision.prompts import PromptEncoder
from glassformer.core.vision.stages import Stages
from glassformer.core.vision.two_way import TwoWayStack
from glassformer.errors import ShapeError


@dataclass(frozen=True)
class Prompts:
    """Prompts of embedded images: N points, boxes or masks each.

    points: (B, N, P, 2), (x, y) in pixels of the image that the model reads; a prompt has P points
    labels: (B, N, P), 1 foreground (the default), 0 background, -10 padding
    boxes: (B, N, 4), (x_min, y_min, x_max, y_max)
    masks: (B, 1, 4h, 4w), mask logits of an earlier call
    multimask_output: three masks for an ambiguous prompt such as one click, else one mask
    """

    points: Tensor | None = None
    labels: Tensor | None = None
    boxes: Tensor | None = None
    masks: Tensor | None = None
    multimask_output: bool = True

    def __post_init__(self) -> None:
        points, boxes = self.points, self.boxes
        if points is not None and boxes is not None and points.shape[1] != boxes.shape[1]:
            expected = f"as many prompts as points have, {points.shape[1]}"
            raise ShapeError("boxes", boxes.shape, expected)


class PromptedMaskOutput(NamedTuple):
    """Mask logits (B, N, M, 4h, 4w) of every prompt, and their predicted IoU (B, N, M)."""

    masks: Tensor
    iou: Tensor


class PromptedMaskHead(nn.Module):
    """Masks as products of mask tokens, each through its own perceptron, with the upscaled image.

    Its tokens, one for the IoU and one for every mask, go through the decoder with the tokens of the prompt.
    """

    def __init__(self, d_model: int, spec: specs.PromptedMasksSpec) -> None:
        super().__init__()
        count = spec.num_masks + 1
        self.tokens = normal_table(1 + count, d_model, std=1.0)
        self.upscale1 = nn.ConvTranspose2d(d_model, d_model // 4, 2, stride=2)
        self.upscale_norm = ChannelLayerNorm(d_model // 4)
        self.upscale2 = nn.ConvTranspose2d(d_model // 4, d_model // 8, 2, stride=2)
        self.hypernetworks = nn.ModuleList(
            MLP(d_model, d_hidden=d_model, d_out=d_model // 8) for _ in range(count)
        )
        self.iou = MLP(d_model, d_hidden=spec.iou_dim, d_out=count, num_layers=spec.iou_layers)

    def forward(
        self, x: Tensor, image: Tensor, *, multimask_output: bool = True, obs: Observer | None = None
    ) -> tuple[Tensor, Tensor]:
        """Decoded tokens x (B, T, D) and image (B, D, h, w) -> masks (B, M, 4h, 4w) and IoU (B, M).

        multimask_output: return the masks of an ambiguous prompt, else the one mask of several prompts.
        """
        gelu = ACTIVATIONS["gelu"]
        image = gelu(self.upscale_norm(self.upscale1(image)))
        image = tap(obs, "upscaled", gelu(self.upscale2(image)))  # (B, D / 8, 4h, 4w)
        count = len(self.hypernetworks)
        wanted = range(1, count) if multimask_output else range(1)
        weights = torch.stack([self.hypernetworks[n](x[:, 1 + n]) for n in wanted], 1)  # (B, M, D / 8)
        masks = (weights @ image.flatten(2)).unflatten(-1, image.shape[-2:])
        iou = self.iou(x[:, 0])[:, wanted.start : wanted.stop]
        return tap(obs, "masks", masks), tap(obs, "iou", iou)


class PromptedSegmenter(Model):
    """Promptable segmentation model; `encode_image` runs once per image, `decode` once per prompt.

    embed: input embedding of the image
    encoder: image encoder
    neck: convolutions after it
    prompt: encoder of points, boxes and masks
    decoder: two-way attention between prompt tokens and image
    head: masks and their predicted IoU

    >>> from glassformer.core.build import build_model
    >>> attention = specs.AttentionSpec(num_heads=2)
    >>> ffn, half = specs.FeedForwardSpec(d_ff=32), specs.AttentionSpec(num_heads=2, head_dim=4)
    >>> block = specs.BlockSpec(attention=attention, feed_forward=ffn, wiring="pre")
    >>> model = build_model(specs.PromptedSegmenterSpec(
    ...     input=specs.ImagePatchesSpec(image_size=(32, 32), patch_size=(4, 4), prefix=0),
    ...     encoder=specs.StackSpec(d_model=16, num_layers=1, block=block), neck=specs.NeckSpec(channels=16),
    ...     decoder=specs.TwoWayStackSpec(
    ...         d_model=16, num_layers=2, attention=attention, cross_attention=half, feed_forward=ffn)))
    >>> embedding = model.encode_image(torch.randn(1, 3, 32, 32))
    >>> masks, iou = model.decode(embedding, torch.tensor([[[[5.0, 9.0]], [[20.0, 30.0]]]]))
    >>> masks.shape, iou.shape                                  # two clicks, three masks each
    (torch.Size([1, 2, 3, 32, 32]), torch.Size([1, 2, 3]))
    """

    spec: specs.PromptedSegmenterSpec

    def __init__(
        self,
        spec: specs.PromptedSegmenterSpec,
        *,
        embed: nn.Module,
        encoder: Stack | Stages,
        neck: Neck,
        prompt: PromptEncoder,
        decoder: TwoWayStack,
        head: PromptedMaskHead,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.embed, self.encoder, self.neck = embed, encoder, neck
        self.prompt, self.decoder, self.head = prompt, decoder, head

    def forward(
        self,
        images: Tensor | ImageInputs | None,
        prompts: Tensor | Prompts,
        *,
        image_embeddings: Tensor | None = None,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> PromptedMaskOutput:
        """Encode images (B, C, height, width) and decode their prompts. A tensor is the points.

        image_embeddings: (B, D, h, w) of `encode_image`, instead of images
        """
        if image_embeddings is None:
            assert images is not None
            image_embeddings = self.encode_image(images, kernel=kernel, obs=obs)
        return self.decode(image_embeddings, prompts, kernel=kernel, obs=obs)

    def encode_image(
        self, images: Tensor | ImageInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Encode images (B, C, height, width) -> embeddings (B, D, h, w)."""
        embedded = embed_inputs(self.embed, images, obs=scope(obs, "embed"))
        assert embedded.grid is not None
        x = self.encoder(embedded, kernel=kernel, obs=scope(obs, "encoder"))
        maps = cells_to_map(x, self.encoder.output_grid(embedded.grid))
        embedding: Tensor = self.neck(maps, obs=scope(obs, "neck"))
        return embedding

    def decode(
        self,
        image_embedding: Tensor,
        prompts: Tensor | Prompts,
        *,
        kernel: Kernel = "auto",
        obs: Observer | None = None,
    ) -> PromptedMaskOutput:
        """Decode the prompts of embedded images (B, D, h, w) to masks. A tensor is the points."""
        prompts = Prompts(prompts) if isinstance(prompts, Tensor) else prompts
        tokens, dense = self.prompt(
            prompts.points, prompts.labels, prompts.boxes, prompts.masks, obs=scope(obs, "prompt")
        )
        batch, count = image_embedding.shape[0], tokens.shape[1]
        rows, columns = image_embedding.shape[-2:]
        tokens = tokens.expand(batch, -1, -1, -1).flatten(0, 1)  # (B * N, T, D)
        tokens = torch.cat((self.head.tokens.expand(batch * count, -1, -1), tokens), 1)
        image = map_to_cells(image_embedding + dense)  # (B, h * w, D)
        x, image = self.decoder(
            tokens,
            image.repeat_interleave(count, 0),
            self.prompt.position.grid(rows, columns),
            kernel=kernel,
            obs=scope(obs, "decoder"),
        )
        maps = cells_to_map(image, (rows, columns))  # (B * N, D, h, w)
        multimask = prompts.multimask_output
        found, iou = self.head(x, maps, multimask_output=multimask, obs=scope(obs, "head"))
        return PromptedMaskOutput(found.unflatten(0, (batch, count)), iou.unflatten(0, (batch, count)))
