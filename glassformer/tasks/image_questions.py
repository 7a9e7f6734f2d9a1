"""Answer questions about images: choose among known answers, generate them, or ask in a chat."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.masks import Mask
from glassformer.data.image_files import ImageLike
from glassformer.errors import GlassformerError, UnsupportedError, attempt
from glassformer.generation.engine import generate
from glassformer.generation.params import GenerationOutput
from glassformer.generation.prompt import Prompt
from glassformer.processors.image_question import (
    ImageQuestion,
    ImageQuestionProcessor,
    check_image_question,
    is_image_question,
    with_images,
)
from glassformer.processors.text import require_tokenizer
from glassformer.tasks.base import (
    BATCH_TOKENS,
    BatchTask,
    Task,
    check_at_least,
    check_finite,
    encoder_model,
)
from glassformer.tasks.chat import ChatGenerator
from glassformer.tasks.classification import LabelScorer
from glassformer.tasks.declarations.ask import UNANSWERED, ImageAnswer, ScoredAnswer, Way
from glassformer.tasks.text_generation import Document, generation_params, memory_errors, special_tokens

MAX_ANSWER_TOKENS = 32  # if neither the folder nor the caller sets a limit


class ImageQuestionTask(BatchTask[tuple[ImageLike, str], ImageAnswer]):
    """Answer questions about images; inputs are (image, question).

    top: number of answers, most likely first. truncate: shorten long questions.
    """

    processor: ImageQuestionProcessor

    def __init__(
        self, bundle: Bundle, *, top: int = 1, truncate: bool = False, batch_tokens: int | None = None
    ) -> None:
        check_at_least("top", top)
        check_at_least("batch_tokens", batch_tokens)
        self.bundle, self.top = bundle, top
        self.processor = ImageQuestionProcessor(bundle, truncate=truncate)
        self.budget = batch_tokens or BATCH_TOKENS
        self.read_ahead = self.processor.read_ahead(self.budget)

    def is_blank(self, input: tuple[ImageLike, str]) -> bool:
        return is_blank_question(input)

    @abstractmethod
    def answers(self, raw: Any) -> list[ScoredAnswer]:
        """Return the answers to a question, most likely first."""

    def postprocess(self, input: object, item: ImageQuestion | None, raw: Any) -> ImageAnswer:
        if item is None:
            return UNANSWERED
        answer = best_answer(self.answers(raw))
        known = require_tokenizer(self.bundle).unknown_ids.isdisjoint(item.question.ids)
        return answer if known else replace(answer, warnings=["unknown_words"])


def is_blank_question(input: Any) -> bool:
    """Whether both the image and the question are empty, as in an empty row of a table."""
    return isinstance(input, tuple) and all(
        part is None or (isinstance(part, str) and not part.strip()) for part in input
    )


def best_answer(answers: Sequence[ScoredAnswer]) -> ImageAnswer:
    best, *others = answers
    return ImageAnswer(answer=best.answer, score=best.score, alternatives=others)


class AnswerClassifier(ImageQuestionTask):
    """Choose among the answers that a model knows."""

    def __init__(self, bundle: Bundle, **options: Any) -> None:
        own = {name: options.pop(name) for name in ("top", "truncate", "batch_tokens") if name in options}
        super().__init__(bundle, **own)
        for name, value in options.items():
            if value not in (None, False):
                hint = "it chooses among known answers"
                raise UnsupportedError(bundle.display_name, f"the option {name}", hint=hint)
        self.labels = LabelScorer.of(bundle, self.top)

    def forward(self, items: Sequence[ImageQuestion]) -> list[Tensor]:
        logits: Tensor = encoder_model(self.bundle)(**self.processor.collate(items))
        return list(check_finite(self.bundle, logits.float().cpu()))

    def answers(self, raw: Tensor) -> list[ScoredAnswer]:
        return [ScoredAnswer(answer=label.label, score=label.score) for label in self.labels(raw)]


class AnswerGenerator(ImageQuestionTask):
    """Generate answers with an encoder of questions that attends to images, and a decoder.

    An image is encoded once for all questions about it.
    top: number of answers, most likely first. truncate: shorten long questions.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        top: int = 1,
        truncate: bool = False,
        batch_tokens: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(bundle, top=top, truncate=truncate, batch_tokens=batch_tokens)
        several = {"num_return_sequences": top} if top > 1 else {}
        self.params = generation_params(
            bundle,
            {**several, **options},  # type: ignore[typeddict-item]
            beams=top,
            limit=lambda length: MAX_ANSWER_TOKENS,
            special=special_tokens(bundle),
        )
        self.budget = max(1, self.budget // self.params.config.rows)

    def forward(self, items: Sequence[ImageQuestion]) -> list[list[GenerationOutput]]:
        text = self.processor.texts(items)
        padding = text.mask.padding if isinstance(text.mask, Mask) else None
        real = torch.ones_like(text.ids, dtype=torch.bool) if padding is None else padding
        with memory_errors():
            inputs = with_images(text, torch.stack(self._encode(items)))
            return generate(self.bundle.inference_model(), inputs, self.params, attention_mask=real)

    def sources(self, items: Sequence[ImageQuestion]) -> list[Sequence[Prompt]]:
        return [
            [Prompt.of_source(with_images(self.processor.texts([item]), vectors[None]), len(item.question))]
            for item, vectors in zip(items, self._encode(items), strict=True)
        ]

    def result(self, item: ImageQuestion, outputs: Sequence[Sequence[GenerationOutput]]) -> ImageAnswer:
        return self.postprocess(None, item, outputs[0])

    def _encode(self, items: Sequence[ImageQuestion]) -> list[Tensor]:
        model: Any = self.bundle.model
        images = [item.image for item in items]
        return self.processor.image.encode(images, model.src_embed.encode_images, batch_size=self.read_ahead)

    def answers(self, raw: Sequence[GenerationOutput]) -> list[ScoredAnswer]:
        decode = self.params.decode
        assert decode is not None
        texts = (" ".join(decode(output.ids).split()) for output in raw)
        scores = (math.exp(min(0.0, sum(output.logprobs))) for output in raw)
        return [ScoredAnswer(answer=text, score=score) for text, score in zip(texts, scores, strict=True)]


class AnswerChat(ChatGenerator):
    """Ask a vision-language model, by its chat template.

    top: number of answers, most likely first. truncate: is refused, since prompts are never cut.
    """

    default_new_tokens = MAX_ANSWER_TOKENS

    def __init__(self, bundle: Bundle, *, top: int = 1, truncate: bool = False, **options: Any) -> None:
        check_at_least("top", top)
        if truncate:
            hint = "its prompts are never cut"
            raise UnsupportedError(bundle.display_name, "the option truncate", hint=hint)
        several = {"num_return_sequences": top, "num_beams": top} if top > 1 else {}
        if options.get("do_sample"):
            several.pop("num_beams", None)
        super().__init__(bundle, **{**several, **options})

    def is_single(self, inputs: Any) -> bool:
        return is_image_question(inputs)

    def is_blank(self, input: Any) -> bool:
        return is_blank_question(input)

    def input_name(self, input: Any) -> str:
        return "question"

    def load(self, inputs: Iterable[Any]) -> list[Document | GlassformerError]:
        return [attempt(self._load_question, source) for source in inputs]

    def _load_question(self, source: Any) -> Document:
        image, question = check_image_question(source)
        parts = [{"type": "image", "image": image}, {"type": "text", "text": question}]
        return self._encode([{"role": "user", "content": parts}])

    def postprocess(self, *arguments: Any) -> Any:
        output = super().postprocess(*arguments)
        if not output.num_tokens:
            return UNANSWERED
        ranked = [output, *output.alternatives]
        return best_answer(
            [ScoredAnswer(answer=one.text.strip(), score=math.exp(min(0.0, one.score))) for one in ranked]
        )


TASKS: dict[Way, Callable[..., Task[Any, Any]]] = {
    "choose": AnswerClassifier,
    "generate": AnswerGenerator,
    "chat": AnswerChat,
}
