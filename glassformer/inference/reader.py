"""An encoder that reads without its padding, its weights laid out for the machine.

B sequences, T positions, N real tokens, D d_model.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.embeddings import ImageInput, TokenInput
from glassformer.core.heads import Context
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderOnly
from glassformer.core.reading import MaskLike, first_vectors, inferred, placed
from glassformer.errors import GlassformerError
from glassformer.inference.layers import Layers, MadeOf, stream_dtype
from glassformer.inference.products import Lay, Weights, laying
from glassformer.inference.rest import at_rest
from glassformer.inference.whole import Rows, read_whole


def takes(model: nn.Module) -> TypeGuard[EncoderOnly]:
    """Whether a model is one that `Reader` reads for: an encoder of texts or pictures."""
    return isinstance(model, EncoderOnly) and isinstance(model.embed, TokenInput | ImageInput)


def reader(model: EncoderOnly, weights: Weights = "own") -> Reader:
    """The encoder with its weights laid out as this machine multiplies them fastest; see `decoding.ready`."""
    return Reader(model, weights)


class Reader(nn.Module):
    """`vectors` and `forward` as the model's own in evaluation, for masks that only hide padding.

    No one can observe. A model in training stays so, and is read without dropout.
    """

    def __init__(self, model: EncoderOnly, layout: Weights | Lay) -> None:
        super().__init__()
        self.model, self.layout = model, layout
        self._laid_out()

    def _laid_out(self) -> None:
        lay = laying(self.layout, next(self.model.parameters()))
        self.layers = Layers(self.model.encoder, lay)
        self.made_of = MadeOf(self.model)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.layout)  # a copy lays out its own weights

    @property
    def spec(self) -> specs.EncoderOnly:
        return self.model.spec

    @property
    def head(self) -> nn.Module:
        return self.model.head

    def forward(self, *inputs: Any, **words: Any) -> Any:
        """What the head makes of `vectors`."""
        with at_rest(self.model):
            return self.model.head(*self.vectors(*inputs, **words))

    def vectors(
        self, inputs: Tensor, mask: MaskLike = None, *, types: Tensor | None = None
    ) -> tuple[Tensor, Context]:
        """ids (B, T) or images (B, C, height, width) -> vectors (B, T, D), zero where padding is."""
        if not self.made_of.still(self.model):
            self._laid_out()
        with at_rest(self.model), torch.cuda.device_of(inputs):  # kernels run on the GPU that is in use
            return self._read(inputs, mask, types)

    def _read(self, inputs: Tensor, mask: MaskLike, types: Tensor | None) -> tuple[Tensor, Context]:
        embed = self.model.embed
        tokens = isinstance(embed, TokenInput)
        seen = inferred(embed, inputs, mask, "mask")
        if seen.allowed is not None or seen.segments is not None or seen.window is not None or seen.causal:
            raise GlassformerError("this reads whole texts; hide only padding, or use the model itself")
        places = placed(seen, 0, inputs, "mask") if tokens else None
        more = {} if types is None else {"types": types}
        x = first_vectors(embed, inputs, places, 0, None, **more).x
        x = x.to(stream_dtype(next(self.model.parameters())))
        real = seen.padding
        if real is None:
            real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        rows = Rows(real)
        found = rows.put(read_whole(self.layers, x, rows, Mask(padding=seen.padding), places))
        return found.view(x.shape), Context(ids=inputs if tokens else None, padding=seen.padding)
