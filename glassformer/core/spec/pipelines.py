"""Specs of models that draw: a denoiser with the models around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from glassformer.core.spec.architectures import EncoderOnlySpec, InitSpec, ModelSpec, NormalSpec
from glassformer.core.spec.convolution import AutoencoderSpec, UNetSpec
from glassformer.core.spec.diffusion import ConditionedLatentsSpec
from glassformer.core.spec.text import HeadSpec, InputSpec, Output
from glassformer.errors import ConflictError, MissingValueError


@dataclass(frozen=True, kw_only=True)
class ClassLabelsSpec(InputSpec):
    """A class for each example, by its number. num_classes: number of classes."""

    modality = "class"

    num_classes: int

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class DiffusionModelSpec(ModelSpec):
    """A model that draws an image from a text or a class, by removing noise step by step.

    denoiser: predicts the noise, or velocity, in latents.
    autoencoder: decodes latents to images; None: the denoiser works on pixels.
    text_encoder: its hidden states are the vectors that the denoiser attends to; None: for classes.
    text_len: number of tokens that a text is padded to; None: that of the text encoder's position table.
    mask_padding: whether the padding of a text is hidden from both models.
    """

    architecture = "diffusion model"

    denoiser: EncoderOnlySpec | UNetSpec
    autoencoder: AutoencoderSpec | None = None
    text_encoder: EncoderOnlySpec | None = None
    text_len: int | None = None
    mask_padding: bool = False
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=NormalSpec)  # of parts without one; every part has its own

    if not TYPE_CHECKING:

        @property
        def head(self) -> HeadSpec:
            return self.denoiser.head

    def __post_init__(self) -> None:
        super().__post_init__()
        latents, text = self.latents, self.text_encoder
        if text is None and latents.num_classes is None:
            raise MissingValueError("text_encoder", "by a denoiser without classes")
        if text is not None and text.encoder.d_model != latents.text_dim:
            reason = f"the width of its vectors is {text.encoder.d_model}, not {latents.text_dim}"
            raise ConflictError(("text_encoder", "denoiser"), reason)
        if text is not None and self.max_text_len is None:
            raise MissingValueError("text_len", "for a text encoder without a position table")
        channels = self.latent_shape[0]
        if self.autoencoder is not None and self.autoencoder.latents.channels != channels:
            reason = f"the latents have {self.autoencoder.latents.channels} and {channels} channels"
            raise ConflictError(("autoencoder", "denoiser"), reason)

    @property
    def latents(self) -> ConditionedLatentsSpec:
        """What the denoiser takes."""
        read = self.denoiser.input
        assert isinstance(read, ConditionedLatentsSpec)
        return read

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """The shape of latents (C, ..., h, w) in training."""
        return self.latents.example_shape(0, 0)

    @property
    def stride(self) -> int:
        """Pixels per row and column of the latents."""
        return 1 if self.autoencoder is None else self.autoencoder.stride

    @property
    def max_text_len(self) -> int | None:
        """Number of tokens that a text is padded to."""
        position = None if self.text_encoder is None else getattr(self.text_encoder.input, "position", None)
        return self.text_len or getattr(position, "max_len", None)

    @property
    def yields(self) -> Output | None:
        return "images"

    def inputs(self) -> tuple[InputSpec, ...]:
        if self.text_encoder is not None:
            return self.text_encoder.inputs()
        return (ClassLabelsSpec(num_classes=self.latents.num_classes or 0),)
