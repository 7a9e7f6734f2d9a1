"""Specs of models that draw: a denoiser, or a decoder of image tokens, with the models around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from glassformer.core.spec.architectures import (
    DecoderOnlySpec,
    EncoderOnlySpec,
    InitSpec,
    ModelSpec,
    NormalSpec,
)
from glassformer.core.spec.convolution import AutoencoderSpec, UNetSpec
from glassformer.core.spec.diffusion import ConditionedLatentsSpec
from glassformer.core.spec.text import HeadSpec, InputSpec, LanguageModelSpec, Output, TokensSpec
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError


@dataclass(frozen=True, kw_only=True)
class ClassLabelsSpec(InputSpec):
    """A class for each example, by its number. num_classes: number of classes."""

    modality = "class"

    num_classes: int

    def example_shape(self, length: int, width: int) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class DiffusionModelSpec(ModelSpec):
    """A model that draws an image or a video from a text or a class, by removing noise step by step.

    denoiser: predicts the noise, or velocity, in latents.
    autoencoder: decodes latents to images; None: the denoiser works on pixels.
    text_encoder: its hidden states are the vectors that the denoiser attends to; None: for classes.
    text_len: number of tokens that a text is padded to; None: that of the text encoder's position table.
    mask_padding: whether the padding of a text is hidden from both models.
    shares_mask: whether a negative text has the mask of the text, instead of one for its own padding.
    lowercase: whether texts are converted to lower case.
    """

    architecture = "diffusion model"

    denoiser: EncoderOnlySpec | UNetSpec
    autoencoder: AutoencoderSpec | None = None
    text_encoder: EncoderOnlySpec | None = None
    text_len: int | None = None
    mask_padding: bool = False
    shares_mask: bool = False
    lowercase: bool = False
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
        if self.shares_mask and not self.mask_padding:
            raise ConflictError(("shares_mask", "mask_padding"), "padding is not hidden")
        channels = self.latent_shape[0]
        if self.autoencoder is not None and self.autoencoder.latents.width != channels:
            reason = f"the latents have {self.autoencoder.latents.width} and {channels} channels"
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

    def denoising_size(self, size: Sequence[int]) -> int:
        """Estimate how many numbers the denoiser holds at a time for an image of this height and width."""
        height, width = (side // self.stride for side in size)
        if isinstance(self.denoiser, UNetSpec):
            return 40 * height * width * self.denoiser.encoder[0].width
        return 18 * self.latents.num_tokens((1, 1, height, width)) * self.denoiser.encoder.d_model

    def decoding_size(self, size: Sequence[int]) -> int:
        """Estimate how many numbers the autoencoder holds at a time for an image of this height and width."""
        pixels = size[0] * size[1]
        return pixels * 3 if self.autoencoder is None else 8 * pixels * self.autoencoder.decoder[-1].width

    @property
    def yields(self) -> Output | None:
        return "frames" if len(self.latent_shape) == 4 else "images"

    def inputs(self) -> tuple[InputSpec, ...]:
        if self.text_encoder is not None:
            return self.text_encoder.inputs()
        return (ClassLabelsSpec(num_classes=self.latents.num_classes or 0),)


@dataclass(frozen=True, kw_only=True)
class ImageTokensModelSpec(ModelSpec):
    """A model that draws an image from a text or a class, by generating the codes of an autoencoder.

    A sequence is [text tokens | start of image | codes, row by row]; a class takes the place of the text. The
    token table holds the codes first, then the start of image, then the tokens of the text or the classes,
    so that the head, which scores the codes alone, needs no mask.

    decoder: predicts the next code. autoencoder: has the codebook, and decodes codes to images.
    num_classes: number of classes; None: for texts.
    """

    architecture = "image tokens model"

    decoder: DecoderOnlySpec
    autoencoder: AutoencoderSpec
    num_classes: int | None = None
    tied: tuple[Literal["head"], ...] = ()
    init: InitSpec = field(default_factory=NormalSpec)  # of parts without one; both have their own

    if not TYPE_CHECKING:

        @property
        def head(self) -> HeadSpec:
            return self.decoder.head

    def __post_init__(self) -> None:
        super().__post_init__()
        read, head = self.decoder.input, self.decoder.head
        if self.autoencoder.num_codes is None:
            raise MissingValueError("codebook", "by an autoencoder of image tokens")
        if not isinstance(read, TokensSpec) or not isinstance(head, LanguageModelSpec) or self.decoder.tied:
            raise InvalidValueError("decoder", read.kind, "a decoder of tokens whose head is not tied")
        if head.vocab_size != self.num_codes:
            reason = f"the head scores {head.vocab_size} codes of {self.num_codes}"
            raise ConflictError(("decoder", "autoencoder"), reason)
        words = read.vocab_size - self.offset
        if words < 1 or (self.num_classes is not None and words != self.num_classes):
            expected = "codes, start of image and texts or classes"
            raise InvalidValueError("vocab_size", read.vocab_size, expected)
        if self.max_text_len < 1:
            raise InvalidValueError("max_len", self.decoder.max_len, f"more than the {self.num_cells} codes")

    @property
    def num_codes(self) -> int:
        return self.autoencoder.num_codes or 0

    @property
    def image_start_id(self) -> int:
        """The token between the text and the codes."""
        return self.num_codes

    @property
    def offset(self) -> int:
        """The id of the first token of the text, or of the first class."""
        return self.num_codes + 1

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the codes of an image."""
        height, width = self.autoencoder.input.image_size
        return height // self.autoencoder.stride, width // self.autoencoder.stride

    @property
    def num_cells(self) -> int:
        """Number of codes of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def max_text_len(self) -> int:
        """Maximum number of tokens of a text."""
        position = getattr(self.decoder.input, "position", None)
        limit = self.decoder.max_len or getattr(position, "max_len", None) or 0
        return limit - 1 - self.num_cells

    @property
    def yields(self) -> Output | None:
        return "images"

    def inputs(self) -> tuple[InputSpec, ...]:
        classes = self.num_classes
        return self.decoder.inputs() if classes is None else (ClassLabelsSpec(num_classes=classes),)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Return what the codes of an image follow, for the tokens of a text or for one class.

        Without ids, the prompt has no condition.
        """
        return [*(self.offset + token for token in ids), self.image_start_id]
