"""Output heads of image models: feature maps, boxes, masks, and the similarity of two towers.

B batch, T positions, D d_model, L labels, Q object queries, h and w rows and columns of a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.feedforward import MLP
from glassformer.core.heads import HeadContext, image_patches
from glassformer.core.norms import make_norm
from glassformer.core.observe import Observer, tap
from glassformer.core.vision.convolution.pixel_head import PixelHead
from glassformer.core.vision.grid import cells_to_map
from glassformer.errors import InvalidValueError


class DistilledLogits(NamedTuple):
    """Logits of the class token and of the distillation token, and their mean (B, L)."""

    logits: Tensor
    first: Tensor
    second: Tensor


class MaskOutput(NamedTuple):
    """Class and mask of every object query; in training also those predicted by earlier layers."""

    logits: Tensor  # (B, Q, L + 1), the last one is "no object"
    masks: Tensor  # (B, Q, h, w), logits
    layers: tuple[MaskOutput, ...] = ()  # predictions of every earlier layer, for deep supervision


class BoxOutput(NamedTuple):
    """Class and box of every object query; in training also those predicted by earlier layers."""

    logits: Tensor  # (B, Q, L + 1), the last one is "no object"
    boxes: Tensor  # (B, Q, 4), center x, center y, width and height in shares of the image, 0 to 1
    layers: tuple[BoxOutput, ...] = ()  # predictions of every earlier layer, for deep supervision


def box_corners(boxes: Tensor) -> Tensor:
    """Convert boxes (..., 4) from center x, center y, width, height to x_min, y_min, x_max, y_max.

    >>> box_corners(torch.tensor([0.5, 0.25, 1.0, 0.5])).tolist()
    [0.0, 0.0, 1.0, 0.5]
    """
    center, extent = boxes.split(2, -1)
    return torch.cat((center - extent / 2, center + extent / 2), -1)


class BackboneOutput(NamedTuple):
    """Feature maps of an image, each (B, D, rows, columns)."""

    feature_maps: tuple[Tensor, ...]


class BackboneHead(nn.Module):
    """Feature maps (B, D, rows, columns) of the hidden states after some layers.

    widths: width D of the embedding and of every layer or stage
    """

    reads_all_layers = True

    def __init__(self, spec: specs.BackboneSpec, widths: Sequence[int]) -> None:
        super().__init__()
        if spec.layers[-1] >= len(widths):
            raise InvalidValueError("Backbone.layers", spec.layers, f"at most {len(widths) - 1}")
        self.layers = spec.layers
        normed = spec.layers[:1] if spec.shared_norm else spec.layers
        norm = spec.norm
        self.norms = (
            nn.ModuleList() if norm is None else nn.ModuleList(make_norm(norm, widths[n]) for n in normed)
        )

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> BackboneOutput:
        maps = []
        for n, layer in enumerate(self.layers):
            hidden, grid = context.states[layer]
            cells = image_patches(hidden, grid)
            if self.norms:
                cells = self.norms[n % len(self.norms)](cells)
            assert grid is not None
            maps.append(tap(obs, f"map{layer}", cells_to_map(cells, grid)))
        return BackboneOutput(tuple(maps))


class DistilledClassifyHead(nn.Module):
    """Logits of the class token and of the distillation token, and their mean."""

    def __init__(self, d_model: int, spec: specs.DistilledClassifySpec) -> None:
        super().__init__()
        self.first = nn.Linear(d_model, spec.num_labels)
        self.second = nn.Linear(d_model, spec.num_labels)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> DistilledLogits:
        first, second = self.first(x[:, 0]), self.second(x[:, 1])  # (B, L)
        return DistilledLogits(tap(obs, "logits", (first + second) / 2), first, second)


class SimilarityHead(nn.Module):
    """Logits of images and texts: exp(scale) * cosine + bias, with a trained scale and optional bias."""

    def __init__(self, spec: specs.SoftmaxSimilaritySpec | specs.SigmoidSimilaritySpec) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(spec.scale))
        self.bias = None
        if isinstance(spec, specs.SigmoidSimilaritySpec):
            self.bias = nn.Parameter(torch.tensor(spec.bias))

    def forward(self, images: Tensor, texts: Tensor, *, obs: Observer | None = None) -> Tensor:
        """Embeddings of length 1, (B, E) and (N, E) -> logits (B, N)."""
        logits = self.scale.exp() * (images @ texts.T)
        return tap(obs, "logits", logits if self.bias is None else logits + self.bias)


class MaskHead(nn.Module):
    """Classify object queries, and predict their masks as products of query and pixel embeddings.

    >>> head = MaskHead(16, specs.MasksSpec(num_labels=3, mask_dim=8))
    >>> head(torch.randn(2, 5, 16), torch.randn(2, 8, 6, 7)).masks.shape
    torch.Size([2, 5, 6, 7])
    """

    computes_buffers = True

    class_weights: Tensor  # (L + 1,), not used by the model itself

    def __init__(self, d_model: int, spec: specs.MasksSpec) -> None:
        super().__init__()
        self.mask_dim = spec.mask_dim
        self.out = nn.Linear(d_model, spec.num_labels + 1)
        self.mask = MLP(d_model, d_hidden=d_model, d_out=spec.mask_dim, activation=spec.activation)
        self.register_buffer("class_weights", torch.empty(spec.num_labels + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights of the classes in the loss: 1, and less for "no object", which is most frequent."""
        self.class_weights.fill_(1.0)[-1] = 0.1

    def forward(self, x: Tensor, pixels: Tensor, *, obs: Observer | None = None) -> MaskOutput:
        """Queries x (B, Q, D) and pixel embeddings (B, mask_dim, h, w) -> classes and masks."""
        logits = tap(obs, "logits", self.out(x))  # (B, Q, L + 1)
        masks = torch.einsum("bqc,bchw->bqhw", self.mask(x), pixels)
        return MaskOutput(logits, tap(obs, "masks", masks))


class BoxHead(nn.Module):
    """Class logits and a box for every object query: (B, T, D) -> (B, Q, L + 1) and (B, Q, 4)."""

    def __init__(self, d_model: int, spec: specs.BoxesSpec) -> None:
        super().__init__()
        self.num_queries = spec.num_queries
        classes = spec.num_labels + 1
        self.out = MLP(d_model, d_hidden=d_model, d_out=classes, num_layers=spec.class_layers)
        self.box = MLP(d_model, d_hidden=d_model, d_out=4, num_layers=spec.box_layers)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> BoxOutput:
        earlier = tuple(BoxOutput(*self._predict(layer)) for layer in context.layers)
        logits, boxes = self._predict(x)
        return BoxOutput(tap(obs, "logits", logits), tap(obs, "boxes", boxes), earlier)

    def _predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.num_queries is not None:
            x = x[:, -self.num_queries :]
        return self.out(x), self.box(x).sigmoid()


HEADS: dict[type, type[nn.Module]] = {
    specs.DistilledClassifySpec: DistilledClassifyHead,
    specs.BoxesSpec: BoxHead,
    specs.PixelsSpec: PixelHead,
}
