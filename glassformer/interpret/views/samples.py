"""Views of a whole input: its labels, its embedding, or the similarity of an image and a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.observe import Record, observe
from glassformer.core.vision.heads import DistilledLogits
from glassformer.data.image_files import decode_base64
from glassformer.errors import InputTooLongError
from glassformer.interpret import schema
from glassformer.interpret.outline import describe_stacks, stack_names, stack_output
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import Intervention, TraceInput
from glassformer.interpret.tokens import (
    best_encoded,
    encoded_sequence,
    image_sequence,
    question_sequence,
    tokens_of,
)
from glassformer.interpret.views.base import Result, View
from glassformer.interpret.views.images import data_url, drawing, prepare_image, shipped_example
from glassformer.interpret.views.series import prepare_series, waves
from glassformer.interpret.views.texts import prepare_text
from glassformer.processors.image import FixedSizeVisionProcessor, reads_images
from glassformer.processors.image_question import ImageQuestionProcessor
from glassformer.processors.text import require_tokenizer
from glassformer.tasks.classification import Classifier, LabelScorer
from glassformer.tasks.embedding import Embedder
from glassformer.tasks.encoder import EncoderTask

_REVIEWS = (
    "A wonderful film: warm, funny, and never too long.",
    "정말 재미있는 영화였어요! 배우들의 연기도 훌륭했습니다.",
)

# pairs that share a color or a shape, and two with the same words
_SHAPES = (
    *("a red circle", "a red square", "a blue circle", "a blue square"),
    *("a red circle and a blue square", "a blue circle and a red square"),
)

_KOREAN_QUESTION = "원은 무슨 색인가요?"


class SampleView(View):
    """Base class of views of a text, an image or a series. task: of texts."""

    task: type[EncoderTask[Any]] = Embedder

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.bundle.spec.modalities

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        match self.bundle.spec.modalities[0]:
            case "series":
                return prepare_series(self.bundle, input, self.kind)
            case "image":
                processor = FixedSizeVisionProcessor.from_bundle(self.bundle)
                return prepare_image(processor, self.kind, input, len(stack_names(self.bundle.model)))
        return prepare_text(self.task(self.bundle), self.kind, input)

    def example(self) -> TraceInput:
        match self.bundle.spec.modalities[0]:
            case "series":
                return TraceInput(series=waves(self.bundle))
            case "image":
                return TraceInput(image=drawing(self.bundle))
        return TraceInput(text=best_encoded(self.bundle, _REVIEWS))


class ClassifyView(SampleView):
    """A classifier or a regression model."""

    kind: ClassVar[Literal["classify", "image", "ask"]] = "classify"
    task = Classifier

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        output: Any = record.output
        logits: Tensor = output.logits if isinstance(output, DistilledLogits) else output
        scored = LabelScorer.of(self.bundle)(logits[0].cpu())
        labels = tuple(schema.LabelProbability(label=one.label, probability=one.score) for one in scored)
        return schema.LabelsOutcome(kind=self.kind, labels=labels), {}

    def prediction(self, input: TraceInput, outcome: Any) -> str | None:
        return f"{outcome.labels[0].label} ({outcome.labels[0].probability:.0%})"


class ImageView(ClassifyView):
    """A classifier of images, with their patches."""

    kind = "image"


class AskView(ClassifyView):
    """A classifier of answers to questions about images, with words and patches in one sequence."""

    kind, needs = "ask", ("image", "question")

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        processor, tokenizer = ImageQuestionProcessor(self.bundle), require_tokenizer(self.bundle)
        question = input.question or ""
        item = processor.load((decode_base64(input.image or ""), question))
        inputs: dict[str, Any] = {**processor.collate([item])}
        _, _, height, width = inputs["inputs"].images.shape
        words = encoded_sequence(tokenizer, item.question, question, "input")
        sequence = question_sequence(words, image_sequence(processor.patches, (height, width)))
        return PreparedInput(
            kind=self.kind,
            input=input,
            sequences=(sequence,),
            inputs=inputs,
            size=item.image.size,
            tensors={"input.pixels": torch.from_numpy(item.image.pixels.copy())},
        )

    def image(self, prepared: PreparedInput) -> Tensor:
        images: Tensor = prepared.inputs["inputs"].images
        return images

    def with_images(self, prepared: PreparedInput, images: Tensor) -> dict[str, Any]:
        return {"inputs": replace(prepared.repeated(len(images))["inputs"], images=images)}

    def example(self) -> TraceInput:
        return shipped_example("pocket-vqa")

    def examples(self, first: TraceInput) -> Sequence[TraceInput]:
        """Return a Korean question, for a model with Korean answers."""
        is_korean = any("가" <= answer[0] <= "힣" for answer in self.bundle.job.classes or ())
        return [replace(first, question=_KOREAN_QUESTION)] if is_korean else []


class EmbedView(SampleView):
    """An encoder that yields one vector for the whole input."""

    kind = "embed"

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        if self.bundle.spec.yields == "embedding":
            name, vector, tensors = "head.embedding", record["head.embedding"], {}
        else:
            x = record[stack_output(describe_stacks(self.bundle)[-1])]  # (1, T, D)
            first = reads_images(self.bundle) and prepared.sequences[0].prefix > 0
            name, vector = "embedding", x[:, 0] if first else x.mean(1)
            tensors = {name: vector}
        outcome = schema.EmbeddingOutcome(
            vector_name=name, dims=vector.shape[-1], norm=float(vector[0].float().norm())
        )
        return outcome, tensors

    def scores(self, prepared: PreparedInput, record: Record, inputs: Mapping[str, Any]) -> Tensor:
        """Return the cosines (N, 1) with the embedding of the unchanged input."""
        changed = observe(self.bundle.model, inputs)
        vectors = [{**one.tensors, **self.outcome(prepared, one)[1]} for one in (record, changed)]
        name = min({"embedding", "head.embedding"} & {*vectors[0]})
        before, after = (one[name].float() for one in vectors)
        return F.cosine_similarity(after, before)[:, None]


class SimilarityView(View):
    """A model with two towers, for an image and a text."""

    kind, needs = "similarity", ("image", "text")

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        image = ImageView(self.bundle.tower("image")).prepare(input)
        text = EmbedView(self.bundle.tower("text")).prepare(input)
        tokens, texts = text.sequences[0], text.inputs["inputs"]
        padding = tokens_of(require_tokenizer(self.bundle), texts.ids[0, len(tokens) :].tolist())
        tokens = replace(
            tokens, name="text", tokens=(*tokens.tokens, *(replace(token, special=True) for token in padding))
        )
        return replace(
            image,
            kind=self.kind,
            sequences=(replace(image.sequences[0], name="image"), tokens),
            inputs={"images": image.inputs["inputs"], "texts": texts},
        )

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        output: Any = record.output
        cosine = float(output.image_embeds[0].float() @ output.text_embeds[0].float())
        return schema.SimilarityOutcome(cosine=cosine, logit=float(output.logits_per_image[0, 0])), {}

    def scores(self, prepared: PreparedInput, record: Record, inputs: Mapping[str, Any]) -> Tensor:
        """Return the logits (N, 1) of the pairs."""
        model: Any = self.bundle.model
        return model(**inputs).logits_per_image.diagonal()[:, None].float()

    def example(self) -> TraceInput:
        return _shapes()[0]

    def examples(self, first: TraceInput) -> Sequence[TraceInput]:
        """Return the pairs whose texts are not too long for the model."""
        pairs = []
        for pair in _shapes():
            with suppress(InputTooLongError):
                self.prepare(pair)
                pairs.append(pair)
        return pairs


def _shapes() -> list[TraceInput]:
    """Draw each of the texts about shapes; return the images with their texts."""
    from PIL import Image, ImageDraw

    inputs = []
    for text in _SHAPES:
        image, parts = Image.new("RGB", (96, 96), "white"), text.split(" and ")
        draw, side = ImageDraw.Draw(image), 56 if len(parts) == 1 else 40
        for n, part in enumerate(parts):
            _, color, name = part.split()
            x, y = (2 * n + 1) * 48 // len(parts) - side // 2, 48 - side // 2
            (draw.ellipse if name == "circle" else draw.rectangle)((x, y, x + side, y + side), fill=color)
        inputs.append(TraceInput(image=data_url(image), text=text))
    return inputs


VIEWS = (ClassifyView, ImageView, AskView, EmbedView, SimilarityView)
