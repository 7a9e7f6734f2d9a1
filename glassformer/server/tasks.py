"""The routes of the tasks, one for each declaration.

A request names a model, or the first that accepts the task and reads the inputs is chosen. Tasks that
generate text share the continuous batches of their model with all other requests; the others run in the
model's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fastapi import APIRouter
from pydantic import BaseModel

from glassformer.bundle import Bundle
from glassformer.errors import UnsupportedError
from glassformer.generation.prompt import Prompt
from glassformer.server.api_keys import reserve_tokens
from glassformer.server.errors import PayloadTooLargeError
from glassformer.server.metrics import Metrics
from glassformer.server.models import GenerationService, ModelRegistry, ServedModel, without_errors
from glassformer.server.task_schema import SINGLE, RequestInputs, read_request, request_model, response_model
from glassformer.tasks import registry
from glassformer.tasks.base import Callbacks
from glassformer.tasks.forecasting import TIME, request_table
from glassformer.tasks.generation_options import GenerationTaskOptions
from glassformer.tasks.registry import TaskSpec
from glassformer.tasks.text_generation import GeneratesFromSources

MAX_SENTENCES = 4096  # of one request
MAX_CHARACTERS = 1 << 21  # of all texts from which text is generated
READS = {
    "text": "texts",
    "class": "classes",
    "image": "images",
    "series": "time series",
    "vectors": "vectors",
}


def tasks_router(models: ModelRegistry, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["tasks"])
    for spec in registry.tasks().values():
        add_route(router, spec, models, metrics)
    return router


def add_route(router: APIRouter, spec: TaskSpec, models: ModelRegistry, metrics: Metrics) -> None:
    """Add the route of a task."""
    generates = issubclass(spec.options, GenerationTaskOptions)

    async def route(body: Any) -> Any:
        inputs = read_request(spec, body)
        options = spec.read_options(inputs.options)
        model = models.select(body.model, *preferences(spec, options, inputs))
        if generates and model.generation is not None:
            task = await asyncio.to_thread(spec.make, model.bundle, options)
            if isinstance(task, GeneratesFromSources):
                return await generate(spec, model, model.generation, task, inputs.items, metrics)
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
    if spec.inputs in SINGLE:
        response = response_model(spec)
        if spec.parts is not None:
            return response(model=model, **{spec.results: list(spec.parts(task, items[0], callbacks))})
        (output,) = task.run(items, callbacks)
        return response(model=model, **vars(spec.result.of(output)))
    return response_of(spec, model, bundle, [spec.result.of(output) for output in task.run(items, callbacks)])


def response_of(spec: TaskSpec, model: str, bundle: Bundle, results: list[Any]) -> BaseModel:
    """Return the response with a result for each input."""
    response, only = response_model(spec), spec.result_field
    content = {spec.results: [getattr(one, only) for one in results] if only else results}
    if "warnings" in response.model_fields:
        content["warnings"] = spec.notes(bundle, results) if spec.notes is not None else []
    return response(model=model, **content)


async def generate(
    spec: TaskSpec,
    model: ServedModel,
    generation: GenerationService,
    task: GeneratesFromSources,
    inputs: list[Any],
    metrics: Metrics,
) -> BaseModel:
    """Generate a result for each input."""
    items, sources = await asyncio.to_thread(_prepare, task, inputs)
    together = [source for own in sources for source in own]
    for source in together:
        generation.check_length(source, None)
    reserve_tokens(sum(len(source) + task.params.limit(len(source), 1) for source in together))
    outputs = iter(await generation.generate_all(task.params, together))
    rows = [[next(outputs) for _ in own] for own in sources]
    metrics.count_tokens(
        model.id,
        read=sum(map(len, together)),
        generated=sum(len(output.ids) for row in rows for best in row for output in best),
    )
    results = [spec.result.of(task.result(item, row)) for item, row in zip(items, rows, strict=True)]
    return response_of(spec, model.id, model.bundle, results)


def _prepare(
    task: GeneratesFromSources, inputs: list[Any]
) -> tuple[list[Any], Sequence[Sequence[list[int] | Prompt]]]:
    """Return the items and the sources of each."""
    if sum(len(text) for text in inputs if isinstance(text, str)) > MAX_CHARACTERS:
        raise PayloadTooLargeError("characters", MAX_CHARACTERS)
    items = list(task.preprocess(inputs))
    sources = task.sources(items)
    if sum(map(len, sources)) > MAX_SENTENCES:
        raise PayloadTooLargeError("sentences", MAX_SENTENCES)
    return items, sources
