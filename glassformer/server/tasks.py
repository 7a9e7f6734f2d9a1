"""The routes of the tasks, one for each declaration.

A request names a model, or the first that accepts the task and reads the inputs is chosen. Tasks that
generate text share the continuous batches of their model with all other requests; the others run in the
model's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel

from glassformer.bundle import Bundle
from glassformer.errors import UnsupportedError
from glassformer.server.api_keys import reserve_tokens
from glassformer.server.errors import PayloadTooLargeError
from glassformer.server.metrics import Metrics
from glassformer.server.models import ModelRegistry, ServedModel, architecture, without_errors
from glassformer.server.task_schema import SINGLE, RequestInputs, read_request, request_model, response_model
from glassformer.tasks import registry
from glassformer.tasks.base import Callbacks
from glassformer.tasks.forecasting import TIME, request_table
from glassformer.tasks.registry import TaskSpec
from glassformer.tasks.results import GeneratedResult
from glassformer.tasks.text_generation import Document, TextGenerationTask, segments_of

MAX_SENTENCES = 4096  # of one request
MAX_CHARACTERS = 1 << 21  # of all texts from which text is generated
READS = {"text": "texts", "image": "images", "series": "time series", "vectors": "vectors"}


def tasks_router(models: ModelRegistry, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["tasks"])
    for spec in registry.tasks().values():
        add_route(router, spec, models, metrics)
    return router


def add_route(router: APIRouter, spec: TaskSpec, models: ModelRegistry, metrics: Metrics) -> None:
    """Add the route of a task."""
    generates = issubclass(spec.result, GeneratedResult)

    async def route(body: Any) -> Any:
        inputs = read_request(spec, body)
        options = spec.read_options(inputs.options)
        model = models.select(body.model, *preferences(spec, options, inputs))
        if generates:
            return await generate(spec, model, options, inputs, metrics)
        return await model.run_steps(lambda *thread: respond(spec, model.id, inputs, *thread))

    route.__name__, route.__doc__ = spec.name, f"{spec.summary} {spec.description}".strip()
    route.__annotations__ = {"body": request_model(spec), "return": response_model(spec)}
    router.post(f"/{spec.name}")(route)


def preferences(spec: TaskSpec, options: Any, inputs: RequestInputs) -> tuple[Callable[[Bundle], bool], ...]:
    """Return predicates for the choice of a model, the most important first."""

    def accepted(bundle: Bundle) -> bool:
        return spec.accepts(bundle.spec) and all(reads(bundle, one) for one in inputs.modalities)

    def preferred(bundle: Bundle) -> bool:
        return accepted(bundle) and spec.prefers(bundle, options)

    return without_errors(preferred), without_errors(accepted)


def reads(bundle: Bundle, modality: str) -> bool:
    """Whether a model reads inputs of a modality."""
    has_tokenizer = modality != "text" or bundle.tokenizer is not None
    return has_tokenizer and modality in bundle.spec.modalities


def respond(
    spec: TaskSpec, model: str, inputs: RequestInputs, bundle: Bundle, callbacks: Callbacks
) -> BaseModel:
    """Run a task in the thread of its model."""
    items, options = inputs.items, dict(inputs.options)
    if spec.inputs == registry.SERIES_TABLE:
        items, options["time"] = [request_table(items[0].columns, items[0].timestamps)], TIME
    if any(option.metadata.get("collection") for option in spec.all_options):
        options["callbacks"] = callbacks
    task = spec.make(bundle, spec.read_options(options))
    known = task.bundle.spec.modalities
    for modality in inputs.modalities.difference(known):  # a text must never be opened as an image file
        hint = f"it reads {' and '.join(READS[one] for one in known)}"
        raise UnsupportedError(bundle.display_name, READS[modality], hint)
    if inputs.modalities == {"series"} and spec.inputs != registry.SERIES_TABLE:
        items = [np.asarray(values, np.float64) for values in items]
    response, only = response_model(spec), spec.result_field
    if spec.inputs in SINGLE:
        if spec.parts is not None:
            return response(model=model, **{spec.results: list(spec.parts(task, items[0], callbacks))})
        (output,) = task.run(items, callbacks)
        return response(model=model, **vars(spec.result.of(output)))
    results = [spec.result.of(output) for output in task.run(items, callbacks)]
    content = {spec.results: [getattr(one, only) for one in results] if only else results}
    notes = spec.notes(bundle, results) if spec.notes is not None else []
    return response(
        model=model, **content, **({"warnings": notes} if "warnings" in response.model_fields else {})
    )


async def generate(
    spec: TaskSpec, model: ServedModel, options: Any, inputs: RequestInputs, metrics: Metrics
) -> BaseModel:
    """Generate a text for each input."""
    task, documents = await asyncio.to_thread(_prepare, spec, model, options, inputs.items)
    sources = [[segment.ids for segment in segments_of(document)] for document in documents]
    assert model.generation is not None  # `_prepare` checks it
    ids = [one for row in sources for one in row]
    for one in ids:
        model.generation.check_length(one, None)
    reserve_tokens(sum(len(one) + task.params.limit(len(one), 1) for one in ids))
    outputs = iter(await model.generation.generate_all(task.params, ids))
    rows = [[next(outputs)[0] for _ in row] for row in sources]
    metrics.count_tokens(
        model.id,
        read=sum(map(len, ids)),
        generated=sum(len(output.ids) for row in rows for output in row),
    )
    texts = [
        spec.result.of(task.postprocess(document, [[output] for output in row]))
        for document, row in zip(documents, rows, strict=True)
    ]
    return response_model(spec)(model=model.id, **{spec.results: texts})


def _prepare(
    spec: TaskSpec, model: ServedModel, options: Any, texts: list[str]
) -> tuple[TextGenerationTask[str], list[Document]]:
    architecture(model.bundle)  # fails if it does not generate
    task: Any = spec.make(model.bundle, options)
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise PayloadTooLargeError("characters", MAX_CHARACTERS)
    documents, count = [], 0
    preprocessed: Iterator[Document] = task.preprocess(texts)
    for document in preprocessed:
        documents.append(document)
        count += len(segments_of(document))
        if count > MAX_SENTENCES:
            raise PayloadTooLargeError("sentences", MAX_SENTENCES)
    return task, documents
