"""An encoder for inference: no computation on padding, and linear layers packed for the device.

B sequences, T positions, N real tokens, D d_model.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.heads import HeadContext
from glassformer.core.inputs import MaskLike, ModelInputs, embed_inputs, tensor_of
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderOnly
from glassformer.core.stack import Stack
from glassformer.errors import UnsupportedError
from glassformer.inference.attention import UnpadIndex, run_unpadded
from glassformer.inference.linear import WeightFormat, choose_linear
from glassformer.inference.prepare import (
    LinearFactory,
    WeightFingerprint,
    evaluation_mode,
    fused_copy,
    packed_copy,
    residual_dtype,
)


def supports(model: nn.Module) -> TypeGuard[EncoderOnly]:
    """Whether `InferenceEncoder` supports a model: an encoder of texts, images or both, without a grid.

    Its head must not read the outputs of all layers.
    """
    return (
        isinstance(model, EncoderOnly)
        and not getattr(model.head, "reads_all_layers", False)
        and isinstance(
            model.spec.input, specs.TokensSpec | specs.ImagePatchesSpec | specs.TokensAndPatchesSpec
        )
        and getattr(model.embed, "layer_positions", None) is None
        and isinstance(model.encoder, Stack)
        and not any(attention.on_grid for attention in model.encoder.attentions)
    )


class InferenceEncoder(nn.Module):
    """Run an encoder in evaluation mode without computing padding; the mask may only mask padding.

    Observers are not supported. The training mode of the model is not changed. If weights change or move
    afterwards, they are packed again.
    """

    def __init__(self, model: EncoderOnly, weights: WeightFormat | LinearFactory | None = "own") -> None:
        """weights: "own", "int8", or a function that creates linear layers (None: the model's modules)."""
        super().__init__()
        self.model, self.weights = model, weights
        self._prepare()

    def _prepare(self) -> None:
        make = self.weights
        if isinstance(make, str):
            make = choose_linear(make, next(self.model.parameters()))
        assert isinstance(self.model.encoder, Stack)  # as `supports` says
        self._encoder = (fused_copy(self.model.encoder, make),)  # in a tuple: not a submodule
        self._fingerprint = WeightFingerprint(self.model)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.weights)  # a copy packs its own weights

    @property
    def encoder(self) -> Stack:
        return self._encoder[0]

    @property
    def spec(self) -> specs.EncoderOnlySpec:
        return self.model.spec

    @property
    def head(self) -> Any:
        return self.model.head

    def forward(self, inputs: ModelInputs, mask: MaskLike = None) -> Any:
        """ids (B, T) or images (B, C, height, width) -> the head's output."""
        with evaluation_mode(self.model):
            return self.model.head(*self.hidden_states(inputs, mask))

    def hidden_states(self, inputs: ModelInputs, mask: MaskLike = None) -> tuple[Tensor, HeadContext]:
        """ids (B, T) or images (B, C, height, width) -> (B, T, D), zero at padding, and head context."""
        with evaluation_mode(self.model):
            if torch.compiler.is_compiling():  # with the weights as they were packed last
                return self._run(inputs, mask)
            if not self._fingerprint.matches(self.model):
                self._prepare()
            with torch.cuda.device_of(tensor_of(inputs)):  # for Triton kernels
                return self._run(inputs, mask)

    def _run(self, inputs: ModelInputs, mask: MaskLike) -> tuple[Tensor, HeadContext]:
        embedded = embed_inputs(self.model.embed, inputs, mask)
        full_mask = embedded.mask
        if (
            full_mask.allowed is not None
            or full_mask.bias is not None
            or full_mask.segments is not None
            or full_mask.window is not None
            or full_mask.causal
        ):
            raise UnsupportedError(
                "the inference encoder", "masks other than padding masks", hint="call the original model"
            )
        x = embedded.x.to(residual_dtype(next(self.model.parameters())))
        rows = UnpadIndex(full_mask.padding, x.shape[:2])
        mask = Mask(padding=full_mask.padding)
        x = rows.pad(run_unpadded(self.encoder, x, rows, mask, embedded.positions))
        return x, HeadContext.of(embedded, tensor_of(inputs))


class PackedModel(nn.Module):
    """Run any model in evaluation mode with packed linear layers; calls and methods are those of the model.

    If weights change or move afterwards, they are packed again.
    """

    def __init__(self, model: nn.Module, weights: WeightFormat = "own") -> None:
        super().__init__()
        self.model, self.weights = model, weights
        self._prepare()

    def _prepare(self) -> None:
        make = choose_linear(self.weights, next(self.model.parameters()))
        self._packed = (packed_copy(self.model, make),)  # in a tuple: not a submodule
        self._fingerprint = WeightFingerprint(self.model)

    @property
    def packed(self) -> Any:
        """The copy with packed weights."""
        if not self._fingerprint.matches(self.model):
            self._prepare()
        return self._packed[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.weights)  # a copy packs its own weights

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # with the weights as they were packed last
            return self._packed[0].forward(*args, **kwargs)
        with evaluation_mode(self.model):
            return self.packed.forward(*args, **kwargs)
