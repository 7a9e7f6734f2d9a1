"""Task routes: /translate, /classify, /embed, /similar, /detect, /segment, /ner and /forecast."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from fastapi import APIRouter
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import decode_base64
from glassformer.data.mask_encoding import encode_rle
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError
from glassformer.server.errors import PayloadTooLargeError
from glassformer.server.metrics import Metrics
from glassformer.server.models import (
    ModelRegistry,
    ServedModel,
    architecture,
    is_encoder_decoder,
    translates,
    without_errors,
)
from glassformer.server.schema import (
    ClassifyRequest,
    ClassifyResponse,
    DetectedObject,
    DetectRequest,
    DetectResponse,
    EmbedRequest,
    EmbedResponse,
    EntitySpan,
    ForecastRequest,
    ForecastResponse,
    LabelScore,
    NerRequest,
    NerResponse,
    RunLengths,
    SegmentedObject,
    SegmentRequest,
    SegmentResponse,
    SimilarMatch,
    SimilarRequest,
    SimilarResponse,
    TranslateRequest,
    TranslateResponse,
    Translation,
)
from glassformer.tasks.base import RejectedInputError, input_kind, token_input
from glassformer.tasks.classification import Classifier, label_names
from glassformer.tasks.detection import Detector
from glassformer.tasks.embedding import Embedder, rank_vectors
from glassformer.tasks.forecasting import LEVELS, Forecaster, forecast_steps
from glassformer.tasks.image_segmentation import make_segmenter
from glassformer.tasks.images import ImageWarning, image_warning_message, reads_images
from glassformer.tasks.text_generation import Document, segments_of
from glassformer.tasks.token_classification import TokenClassifier
from glassformer.tasks.translation import Translator
from glassformer.tasks.zero_shot import TEMPLATE, ZeroShotClassifier

MAX_SENTENCES = 4096  # of one request
MAX_CHARACTERS = 1 << 21  # of all texts to translate
TIME = "ds"
_OTHER_HEADS = specs.TokenClassifySpec | specs.BoxesSpec | specs.MasksSpec  # labels of tokens or objects


def tasks_router(models: ModelRegistry, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["tasks"])

    @router.post("/translate")
    async def translate(body: TranslateRequest) -> TranslateResponse:
        """Translate texts; line breaks are kept."""
        model = models.select(body.model, translates(body.to), is_encoder_decoder)
        task, documents = await asyncio.to_thread(_prepare, model, body)
        sources = [[segment.ids for segment in segments_of(document)] for document in documents]
        assert model.generation is not None  # `_prepare` checks it
        inputs = [ids for row in sources for ids in row]
        outputs = iter(await model.generation.generate_all(task.params, inputs))
        rows = [[next(outputs)[0] for _ in row] for row in sources]
        metrics.count_tokens(
            model.id,
            read=sum(len(ids) for row in sources for ids in row),
            generated=sum(len(output.ids) for row in rows for output in row),
        )
        results = [
            task.postprocess(document, [[output] for output in row])
            for document, row in zip(documents, rows, strict=True)
        ]
        translations = [Translation.model_validate(result, from_attributes=True) for result in results]
        return TranslateResponse(model=model.id, translations=translations)

    @router.post("/classify")
    async def classify(body: ClassifyRequest) -> ClassifyResponse:
        """Classify texts or images."""
        has_images = body.images is not None

        def is_classifier(bundle: Bundle) -> bool:
            if body.labels is not None:
                return isinstance(bundle.spec, specs.TwoTowerSpec)
            head: Any = getattr(bundle.spec, "head", None)
            label_names(bundle, getattr(head, "num_labels", 0))
            classifies = hasattr(head, "num_labels") and not isinstance(head, _OTHER_HEADS)
            return classifies and reads_images(bundle) == has_images

        _check_one_of(texts=body.texts, images=body.images)
        model = models.select(body.model, without_errors(is_classifier))
        two_towers = isinstance(model.bundle.spec, specs.TwoTowerSpec)
        if (body.labels is not None) != two_towers:
            if two_towers:
                raise MissingValueError("labels", f"by the model {model.id!r}, which has no labels")
            raise UnsupportedError(f"the model {model.id!r}", "other labels", "leave out labels")
        _check_input(model.bundle, images=has_images)
        if two_towers and not has_images:
            raise UnsupportedError(f"the model {model.id!r}", "labels of texts", "send images")
        if body.text_pairs is not None and len(body.text_pairs) != len(body.texts or ()):
            expected = f"{len(body.texts or ())}, as many as texts"
            raise InvalidValueError("text_pairs", f"{len(body.text_pairs)} texts", expected)
        inputs: Any = body.texts if body.images is None else _decode(body.images)
        if body.text_pairs is not None:
            inputs = list(zip(inputs, body.text_pairs, strict=True))
        return await model.run(lambda bundle: _classify(model.id, bundle, inputs, body))

    @router.post("/embed")
    async def embed(body: EmbedRequest) -> EmbedResponse:
        """Embed texts or images, each as one vector."""
        _check_one_of(texts=body.texts, images=body.images)
        suited = _embeds(texts=body.texts is not None, images=body.images is not None)
        model = models.select(body.model, without_errors(suited))
        vectors = await model.run(lambda bundle: _embed(bundle, body.texts, body.images, body.truncate))
        return EmbedResponse(model=model.id, vectors=vectors.tolist())

    @router.post("/similar")
    async def similar(body: SimilarRequest) -> SimilarResponse:
        """Rank candidates by their similarity to each query: texts or images."""
        _check_one_of(texts=body.texts, images=body.images)
        _check_one_of(candidate_texts=body.candidate_texts, candidate_images=body.candidate_images)
        suited = _embeds(
            texts=body.texts is not None or body.candidate_texts is not None,
            images=body.images is not None or body.candidate_images is not None,
        )
        model = models.select(body.model, without_errors(suited))
        return await model.run(lambda bundle: _similar(model.id, bundle, body))

    @router.post("/detect")
    async def detect(body: DetectRequest) -> DetectResponse:
        """Detect objects in images."""

        def detects(bundle: Bundle) -> bool:
            return isinstance(getattr(bundle.spec, "head", None), specs.BoxesSpec)

        model = models.select(body.model, without_errors(detects))
        images = _decode(body.images)
        return await model.run(lambda bundle: _detect(model.id, bundle, images, body))

    @router.post("/segment")
    async def segment(body: SegmentRequest) -> SegmentResponse:
        """Segment an image: the objects that points and boxes name, or all objects and regions.

        A second prompt for the same image reuses its encoding.
        """
        prompted = bool(body.points or body.background_points or body.boxes or body.everything)

        def promptable(bundle: Bundle) -> bool:
            return isinstance(bundle.spec, specs.PromptedSegmenterSpec)

        def segments_images(bundle: Bundle) -> bool:
            return isinstance(getattr(bundle.spec, "head", None), specs.MasksSpec | specs.PixelsSpec)

        suited = (promptable, segments_images) if prompted else (segments_images, promptable)
        model = models.select(body.model, *(without_errors(test) for test in suited))
        image = decode_base64(body.image)
        return await model.run(lambda bundle: _segment(model.id, bundle, image, body))

    @router.post("/ner")
    async def ner(body: NerRequest) -> NerResponse:
        """Find named entities in texts."""

        def tags_tokens(bundle: Bundle) -> bool:
            return isinstance(getattr(bundle.spec, "head", None), specs.TokenClassifySpec)

        model = models.select(body.model, without_errors(tags_tokens))
        return await model.run(lambda bundle: _ner(model.id, bundle, body))

    @router.post("/forecast")
    async def forecast(body: ForecastRequest) -> ForecastResponse:
        """Forecast time series."""
        model = models.select(body.model, without_errors(lambda bundle: forecast_steps(bundle) is not None))
        return await model.run(lambda bundle: _forecast(model.id, bundle, body))

    return router


def _check_one_of(**values: object) -> None:
    names = [name for name, value in values.items() if value is not None]
    if not names:
        raise MissingValueError(" or ".join(values), "as the input")
    if len(names) > 1:
        raise ConflictError(names, "a request must have only one of them")


def _check_input(bundle: Bundle, *, images: bool) -> None:
    """Raise if a model does not read images, or texts: a text must never be opened as an image file."""
    kind = input_kind(bundle.spec)
    if ("images" if images else "text") not in kind:
        raise UnsupportedError(bundle.display_name, "images" if images else "texts", f"it reads {kind}")


def _decode(images: list[str]) -> list[bytes]:
    """Decode images from base64; an error has the number of the image."""
    contents = []
    for number, image in enumerate(images, 1):
        try:
            contents.append(decode_base64(image))
        except InvalidValueError as error:
            raise RejectedInputError("image", number, error) from None
    return contents


def _prepare(model: ServedModel, body: TranslateRequest) -> tuple[Translator, list[Document]]:
    _check_one_of(text=body.text, texts=body.texts)
    architecture(model.bundle)  # fails if it does not generate
    options = {**body.generation_options(), "num_return_sequences": 1}
    task = Translator(model.bundle, to=body.to, prefix=body.prefix, split=body.split, **options)
    texts = [body.text] if body.text is not None else body.texts or []
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise PayloadTooLargeError("characters", MAX_CHARACTERS)
    documents, count = [], 0
    for document in task.preprocess(texts):
        documents.append(document)
        count += len(segments_of(document))
        if count > MAX_SENTENCES:
            raise PayloadTooLargeError("sentences", MAX_SENTENCES)
    return task, documents


def _classify(model: str, bundle: Bundle, inputs: Any, body: ClassifyRequest) -> ClassifyResponse:
    task: Classifier | ZeroShotClassifier
    if body.labels is None:
        task = Classifier(bundle, top=body.top, truncate=body.truncate)
    else:
        template = body.template or TEMPLATE
        task = ZeroShotClassifier(
            bundle, body.labels, template=template, top=body.top, truncate=body.truncate
        )
    outputs = task(inputs)
    results = [
        [LabelScore(label=label.label, score=label.score) for label in output.labels] for output in outputs
    ]
    warnings: Counter[ImageWarning] = Counter(warning for output in outputs for warning in output.warnings)
    messages = [image_warning_message(bundle, warning, count) for warning, count in warnings.items()]
    return ClassifyResponse(model=model, results=results, warnings=messages)


def _detect(model: str, bundle: Bundle, images: list[bytes], body: DetectRequest) -> DetectResponse:
    results = [
        [DetectedObject.model_validate(found, from_attributes=True) for found in objects]
        for objects in Detector(bundle, threshold=body.threshold).run(images)
    ]
    return DetectResponse(model=model, results=results)


def _segment(model: str, bundle: Bundle, image: bytes, body: SegmentRequest) -> SegmentResponse:
    task = make_segmenter(
        bundle,
        points=[(x, y) for x, y in body.points],
        background_points=[(x, y) for x, y in body.background_points],
        boxes=[(left, top, right, bottom) for left, top, right, bottom in body.boxes],
        everything=body.everything,
        points_per_side=body.points_per_side,
        multimask_output=body.multimask_output,
        mode=body.mode,
        threshold=body.threshold,
        stuff_classes=body.stuff_classes,
    )
    results = [
        SegmentedObject(
            label=found.label, score=found.score, box=found.box, mask=RunLengths(**encode_rle(found.mask))
        )
        for found in task(image)
        if found.mask is not None
    ]
    return SegmentResponse(model=model, results=results)


def _embeds(*, texts: bool, images: bool) -> Callable[[Bundle], bool]:
    """Return a check for models that embed texts, images or both."""

    def check(bundle: Bundle) -> bool:
        if isinstance(bundle.spec, specs.TwoTowerSpec):
            return True
        if images:
            return reads_images(bundle) and not texts
        return bundle.tokenizer is not None and bool(token_input(bundle))

    return check


def _embed(bundle: Bundle, texts: list[str] | None, images: list[str] | None, truncate: bool) -> Tensor:
    """Return the vectors (N, D)."""
    _check_input(bundle, images=images is not None)
    if isinstance(bundle.spec, specs.TwoTowerSpec):
        bundle = bundle.tower("text" if images is None else "image")
    inputs: Any = texts if images is None else _decode(images)
    return torch.stack(list(Embedder(bundle, truncate=truncate).run(inputs)))


def _similar(model: str, bundle: Bundle, body: SimilarRequest) -> SimilarResponse:
    queries, candidates = (
        F.normalize(_embed(bundle, texts, images, body.truncate), dim=-1)
        for texts, images in ((body.texts, body.images), (body.candidate_texts, body.candidate_images))
    )
    results = [
        [SimilarMatch(index=n, score=score) for n, score in row]
        for row in rank_vectors(queries, candidates, body.top)
    ]
    return SimilarResponse(model=model, results=results)


def _ner(model: str, bundle: Bundle, body: NerRequest) -> NerResponse:
    task = TokenClassifier(bundle, aggregation_strategy=body.aggregation_strategy, truncate=body.truncate)
    results = [
        [EntitySpan.model_validate(entity, from_attributes=True) for entity in entities]
        for entities in task.run(body.texts)
    ]
    return NerResponse(model=model, results=results)


def _forecast(model: str, bundle: Bundle, body: ForecastRequest) -> ForecastResponse:
    length = len(next(iter(body.series.columns.values())))
    timestamps: Any = range(length) if body.series.timestamps is None else body.series.timestamps
    table: dict[str, Any] = {TIME: timestamps, **body.series.columns}
    quantile_levels = LEVELS if body.quantile_levels is None else sorted(body.quantile_levels)
    columns = list(body.series.columns) if bundle.job.columns is None else None
    task = Forecaster(bundle, time=TIME, columns=columns, fill=body.fill, quantile_levels=quantile_levels)
    result = task(table)
    levels = result.quantile_levels  # none if the model predicts no distribution
    return ForecastResponse(
        model=model,
        columns=list(result.names),
        timestamps=[result.timestamp(0, step) for step in range(result.values.shape[1])],
        values={name: result.values[0, :, n].tolist() for n, name in enumerate(result.names)},
        quantiles={
            name: {f"{level:g}": result.quantiles[q, 0, :, n].tolist() for q, level in enumerate(levels)}
            for n, name in enumerate(result.names)
        }
        if levels
        else None,
        warnings=list(result.notes),
    )
