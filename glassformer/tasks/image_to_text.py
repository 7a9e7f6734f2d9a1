"""Describe images: an image encoder and a text decoder, with the generation loop of all tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import Memory
from glassformer.data.image_files import ImageLike
from glassformer.errors import (
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    UnsupportedError,
    attempt,
)
from glassformer.generation.engine import generate
from glassformer.generation.params import GenerationOutput
from glassformer.generation.prompt import Prompt
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.generation.stopping_criteria import truncate_at_stop
from glassformer.processors.base import ImageWarning
from glassformer.processors.image import FixedSizeVisionProcessor, ProcessedImage
from glassformer.processors.text import check_text, require_tokenizer
from glassformer.tasks.base import BatchTask, check_at_least
from glassformer.tasks.text_generation import (
    BATCH_TOKENS_CPU,
    BATCH_TOKENS_GPU,
    GeneratedText,
    TextOptions,
    context_length,
    generation_params,
    memory_errors,
    special_tokens,
    target_language,
)
from glassformer.tokenization.tokenizer import tag_ids

MAX_CAPTION_TOKENS = 64  # if neither the folder nor the caller sets a limit


@dataclass(frozen=True, kw_only=True)
class ImageCaption(GeneratedText):
    """The output for one image. image_warnings: how it differs from the training data."""

    image_warnings: tuple[ImageWarning, ...] = ()


class Captioner(BatchTask[ImageLike, ImageCaption]):
    """Describe images: paths, file contents (bytes), PIL images or arrays of any size.

    prompt: text that every caption starts with. to: the language, for a model that writes several.
    """

    processor: FixedSizeVisionProcessor

    def __init__(
        self,
        bundle: Bundle,
        *,
        prompt: str | None = None,
        to: str | None = None,
        **options: Unpack[TextOptions],
    ) -> None:
        spec: Any = bundle.spec
        if spec.yields != "next tokens" or spec.modalities != ("image",):
            hint = "use an image encoder with a text decoder, e.g. of the job caption"
            raise UnsupportedError(bundle.display_name, "captioning", hint=hint)
        batch_tokens = options.get("batch_tokens")
        check_at_least("batch_tokens", batch_tokens)
        self.bundle, self.tokenizer = bundle, require_tokenizer(bundle)
        self.processor = FixedSizeVisionProcessor.from_bundle(bundle)
        language, special = target_language(bundle, to), special_tokens(bundle)
        text = check_text(prompt or "", "prompt").rstrip() or language.prefix  # a space begins the next word
        tags = [] if language.tag is None else [language.tag]
        words = self.tokenizer.encode(text, special=False, parse_special=True).ids
        if not self.tokenizer.unknown_ids.isdisjoint(words):
            raise InvalidValueError("prompt", text, f"text in the vocabulary of {bundle.display_name}")
        self.prompt = [*tag_ids(self.tokenizer, tags), *words]  # as in training: a tag is no part of a word
        starts = (*decoder_start_ids(bundle.model, special.start_ids), *self.prompt)
        limit = context_length(bundle)
        if limit is not None and len(starts) > limit:
            raise InputTooLongError(len(starts), limit, hint="shorten the prompt")
        self.params = generation_params(
            bundle,
            {**options, **language.options},  # type: ignore[typeddict-item]
            beams=1,
            limit=lambda length: MAX_CAPTION_TOKENS,
            special=special._replace(start_ids=starts),
        )
        length = self.params.limit(0, len(starts))
        budget = batch_tokens or (BATCH_TOKENS_CPU if bundle.device.type == "cpu" else BATCH_TOKENS_GPU)
        self.read_ahead = max(1, budget // (self.processor.num_tokens + self.params.config.rows * length))
        self.budget = self.read_ahead * self.processor.num_tokens

    def load(self, inputs: Iterable[ImageLike]) -> list[ProcessedImage | GlassformerError]:
        processor = self.processor
        return [attempt(processor.load_cached, source, errors=processor.errors) for source in inputs]

    def forward(self, items: Sequence[ProcessedImage]) -> list[list[GenerationOutput]]:
        with memory_errors():
            memory = Memory.of(torch.stack(self._encode(items)))
            return generate(self.bundle.inference_model(), memory, self.params)

    def sources(self, items: Sequence[ProcessedImage]) -> list[Sequence[Prompt]]:
        vectors = self._encode(items)
        return [[Prompt.of_source(Memory.of(one[None]), self.processor.num_tokens)] for one in vectors]

    def _encode(self, items: Sequence[ProcessedImage]) -> list[Tensor]:
        inference: Any = self.bundle.inference_model()
        return self.processor.encode(items, inference.encode_images, batch_size=self.read_ahead)

    def result(self, item: ProcessedImage, outputs: Sequence[Sequence[GenerationOutput]]) -> ImageCaption:
        return self.postprocess(None, item, outputs[0])

    def postprocess(
        self, input: ImageLike | None, item: ProcessedImage | None, raw: Sequence[GenerationOutput] | None
    ) -> ImageCaption:
        if item is None or raw is None:
            return ImageCaption(text="", score=0.0, num_tokens=0, seconds=0.0, finish_reason="end")
        best, *others = (self._text(output) for output in raw)
        return replace(best, alternatives=tuple(others), image_warnings=item.warnings)

    def decode(self, ids: Sequence[int]) -> str:
        """Convert output ids to a caption, with the prompt."""
        text = self.tokenizer.decode([*self.prompt, *ids])
        return " ".join(truncate_at_stop(text, self.params.config.stop_strings).split())

    def _text(self, output: GenerationOutput) -> ImageCaption:
        return ImageCaption(
            text=self.decode(output.ids),
            score=output.score,
            num_tokens=len(output.ids),
            seconds=0.0,
            finish_reason=output.finish_reason,
            trees=() if output.tree is None else (output.tree,),
        )
