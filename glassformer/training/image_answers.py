"""How a model answers questions about images: it chooses an answer, generates one, or continues a chat.

A format encodes questions and answers, makes the model inputs, computes the loss and returns the answers. The
architecture of the model decides which one. B rows, T tokens of a question or chat, A tokens of an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core.inputs import ImageTextInputs, Masks
from glassformer.core.masks import Mask
from glassformer.data.captions import CaptionExamples
from glassformer.data.examples import IGNORE_INDEX, Arrays, pad
from glassformer.errors import InvalidValueError
from glassformer.generation import GenerationParams
from glassformer.generation.engine import generate
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.generation.prompt import Prompt
from glassformer.processors.image_prompt import IMAGE_PART
from glassformer.processors.text import truncate_longest_first
from glassformer.tasks.declarations.ask import way_to_answer
from glassformer.tasks.text_generation import special_tokens
from glassformer.tokenization import Tokenizer
from glassformer.training.encoding import eos_id
from glassformer.training.learner import Learner, vocabulary_loss

MAX_ANSWER_TOKENS = 16
Ids = list[int]


@dataclass
class AnswerFormat(ABC):
    """How a model answers. base: the model to fine-tune, if there is one. max_len: tokens of a question.

    classes: the answers to choose from.
    """

    base: Bundle | None
    max_len: int = 0
    pad_id: int = 0
    classes: Sequence[str] = ()
    chooses: ClassVar[bool] = False

    def questions(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
        """Encode questions."""
        return [
            truncate_longest_first(text, self.max_len).ids for text in tokenizer.encode_batch(list(texts))
        ]

    def answers(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
        """Encode answers, with an end token."""
        encoded = tokenizer.encode_batch([f"{self.before}{text}" for text in texts], special=False)
        return [[*text.ids[:MAX_ANSWER_TOKENS], self.end_id(tokenizer)] for text in encoded]

    before: ClassVar[str] = ""  # before the text of an answer

    def end_id(self, tokenizer: Tokenizer) -> int:
        ends = () if self.base is None else special_tokens(self.base).eos_token_id
        return ends[0] if ends else eos_id(tokenizer)

    @abstractmethod
    def arrays(self, images: Any, questions: Sequence[Ids], answers: Sequence[Ids]) -> Arrays:
        """Return the arguments of `loss` and `predict` for a batch. images (B, 3, H, W)."""

    def inputs(self, ids: Tensor, images: Tensor) -> ImageTextInputs:
        return ImageTextInputs(ids, Mask(padding=ids != self.pad_id), images=images)

    @abstractmethod
    def loss(
        self, learner: ImageQuestionLearner, images: Tensor, ids: Tensor, labels: Tensor, **arrays: Any
    ) -> Tensor:
        """Return the summed loss of a batch."""

    @abstractmethod
    def predict(self, model: Any, tokenizer: Tokenizer, images: Tensor, ids: Tensor, **_: Any) -> list[str]:
        """Return the answers of a batch. model: prepared for inference by `prepare`."""

    def prepare(self, model: nn.Module) -> Any:
        return prepare_for_inference(model)

    def params(self, tokenizer: Tokenizer, start_id: int | None = None) -> GenerationParams:
        return GenerationParams(
            start_ids=None if start_id is None else (start_id,),
            eos_token_id=self.end_id(tokenizer),
            pad_token_id=self.pad_id,
            max_new_tokens=MAX_ANSWER_TOKENS,
        )


@dataclass
class ChosenAnswers(AnswerFormat):
    """A classifier of answers, such as ViLT."""

    chooses = True

    def answers(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
        numbers = {answer: n for n, answer in enumerate(self.classes)}
        return [[numbers.get(text, len(numbers))] for text in texts]

    def arrays(self, images: Any, questions: Sequence[Ids], answers: Sequence[Ids]) -> Arrays:
        labels = np.array([number for (number,) in answers])
        labels = np.where(labels < len(self.classes), labels, IGNORE_INDEX)
        return {"images": images, "ids": _padded(questions, self.pad_id), "labels": labels}

    def loss(
        self, learner: ImageQuestionLearner, images: Tensor, ids: Tensor, labels: Tensor, **arrays: Any
    ) -> Tensor:
        return learner.cross_entropy(learner.model(self.inputs(ids, images)), labels)

    def predict(self, model: Any, tokenizer: Tokenizer, images: Tensor, ids: Tensor, **_: Any) -> list[str]:
        return [self.classes[n] for n in model(self.inputs(ids, images)).argmax(-1).tolist()]

    def prepare(self, model: nn.Module) -> Any:
        return model


@dataclass
class GeneratedAnswers(AnswerFormat):
    """An encoder of questions and a decoder of answers, such as BLIP."""

    @property
    def start_id(self) -> int:
        assert self.base is not None
        return int(self.base.spec.start_id)  # type: ignore[attr-defined]

    def arrays(self, images: Any, questions: Sequence[Ids], answers: Sequence[Ids]) -> Arrays:
        tgt = _padded([[self.start_id, *ids[:-1]] for ids in answers], self.pad_id)
        known = {"images": images, "ids": _padded(questions, self.pad_id)}
        return {**known, "tgt": tgt, "labels": _padded(answers, IGNORE_INDEX)}

    def loss(
        self, learner: ImageQuestionLearner, images: Tensor, ids: Tensor, labels: Tensor, **arrays: Any
    ) -> Tensor:
        source = self.inputs(ids, images)
        x, context = learner.model.hidden_states(source, arrays["tgt"], Masks(tgt=Mask()))
        return learner.cross_entropy(learner.model.head(x, context), labels)

    def predict(self, model: Any, tokenizer: Tokenizer, images: Tensor, ids: Tensor, **_: Any) -> list[str]:
        mask = ids != self.pad_id
        params = self.params(tokenizer, self.start_id)
        outputs = generate(model, self.inputs(ids, images), params, attention_mask=mask)
        return [tokenizer.decode(best.ids).strip() for best, *_ in outputs]


@dataclass
class ChatAnswers(AnswerFormat):
    """A vision-language model, which continues a chat with an image and a question.

    The image takes the place of the placeholders of one tile; answers and end tokens are learned.
    """

    prompts: dict[str, Ids] = field(default_factory=dict)
    before = " "

    @property
    def source(self) -> Any:
        assert self.base is not None
        return self.base.spec.inputs()[0]

    def questions(self, tokenizer: Tokenizer, texts: Sequence[str]) -> list[Ids]:
        for text in texts:
            if text not in self.prompts:
                self.prompts[text] = self._prompt(tokenizer, text)
        return [self.prompts[text] for text in texts]

    def _prompt(self, tokenizer: Tokenizer, question: str) -> Ids:
        content = [IMAGE_PART, {"type": "text", "text": question}]
        chat = [{"role": "user", "content": content}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        image_id, count = self.source.image_id, self.num_image_tokens
        if ids.count(image_id) != 1:
            raise InvalidValueError("the chat template", ids.count(image_id), "one image token for an image")
        at = ids.index(image_id)
        ids = [*ids[:at], *[image_id] * count, *ids[at + 1 :]]
        if len(ids) > self.max_len:
            raise InvalidValueError(
                "data.max_len", self.max_len, f"at least {len(ids)}, as an image has {count}"
            )
        return ids

    @property
    def num_image_tokens(self) -> int:
        tokens: int = self.source.num_image_tokens(self.source.image.input.image_size)
        return tokens

    def arrays(self, images: Any, questions: Sequence[Ids], answers: Sequence[Ids]) -> Arrays:
        pairs = list(zip(questions, answers, strict=True))
        ids = [[*question, *answer[:-1]] for question, answer in pairs]
        labels = [[*[IGNORE_INDEX] * (len(question) - 1), *answer] for question, answer in pairs]
        sizes = np.array([len(question) for question in questions])
        return {
            **{"images": images, "ids": _padded(ids, self.pad_id), "sizes": sizes},
            "labels": _padded(labels, IGNORE_INDEX),
        }

    def inputs(self, ids: Tensor, images: Tensor) -> ImageTextInputs:
        return ImageTextInputs(ids, Mask(), images=images)  # padding is at the end, where nobody attends

    def loss(
        self, learner: ImageQuestionLearner, images: Tensor, ids: Tensor, labels: Tensor, **arrays: Any
    ) -> Tensor:
        x, context = learner.model.hidden_states(self.inputs(ids, images))
        if learner.uses_r_drop:
            return learner.cross_entropy(learner.model.head(x, context), labels)
        return vocabulary_loss(learner.model, x, context, labels, learner.label_smoothing)

    def predict(
        self, model: Any, tokenizer: Tokenizer, images: Tensor, ids: Tensor, **arrays: Any
    ) -> list[str]:
        vectors = model.model.embed.encode_images(images)
        prompts = [
            Prompt.with_images(row[:size], [own], self.source.image_id)
            for row, size, own in zip(ids.tolist(), arrays["sizes"].tolist(), vectors, strict=True)
        ]
        outputs = generate(model, prompts, self.params(tokenizer))
        return [tokenizer.decode(best.ids).strip() for best, *_ in outputs]


def answer_format(base: Bundle | None) -> type[AnswerFormat] | None:
    """Return how a model answers questions about images; None if it does not."""
    way = "choose" if base is None else way_to_answer(base.spec)
    return {"choose": ChosenAnswers, "generate": GeneratedAnswers, "chat": ChatAnswers, None: None}[way]


class ImageQuestionExamples(CaptionExamples):
    """Questions about images with their answers, as a model takes them."""

    def __init__(self, *args: Any, answers: AnswerFormat, **options: Any) -> None:
        super().__init__(*args, **options)
        self.answers = answers

    def batch(self, rows: Any, *, epoch: int) -> Arrays:
        images = super().batch(rows, epoch=epoch)["images"]
        (questions, answers, _), lengths = self.store.gather(rows)
        split = [
            [part.tolist() for part in np.split(ids, lengths[:-1, number].cumsum())]
            for number, ids in enumerate((questions, answers))
        ]
        return self.answers.arrays(images, *split)


class ImageQuestionLearner(Learner):
    """Train a model to answer questions about images."""

    def __init__(self, model: nn.Module, *, answers: AnswerFormat, **options: Any) -> None:
        super().__init__(model, **options)
        self.answers = answers

    def forward(self, images: Tensor, ids: Tensor, labels: Tensor, **arrays: Tensor) -> Tensor:
        images, ids, *rest = self.repeat(images, ids, *arrays.values())
        inputs = dict(zip(arrays, rest, strict=True))
        return self.answers.loss(self, images, ids, labels, **inputs)


def _padded(rows: Sequence[Ids], value: int) -> Any:
    flat = np.array([token for row in rows for token in row], np.int64)
    return pad(flat, np.array([len(row) for row in rows]), value)


def gray(images: Tensor) -> Tensor:
    """Return images without content, for answers from the questions alone."""
    return torch.zeros_like(images)
