"""Routes of the explorer: its page, models and runs, traces, and any tensor of a trace as raw bytes."""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.staticfiles import StaticFiles

from glassformer.errors import GlassformerError
from glassformer.explorer.page import FOLDER, files
from glassformer.interpret import schema
from glassformer.interpret.changes import MOST as MAX_CHANGES
from glassformer.interpret.difference import difference_info
from glassformer.interpret.explored import Explored
from glassformer.interpret.film import FRAMES as MAX_FRAMES
from glassformer.interpret.film import Films, run_info
from glassformer.interpret.heads import heads_info
from glassformer.interpret.kinds import UnknownNameError, as_json
from glassformer.interpret.lens import lens_info, next_info
from glassformer.interpret.tensors import cut
from glassformer.interpret.units import unit_info
from glassformer.server.schema import (
    MAX_COLUMNS,
    MAX_IDS,
    MAX_IMAGE,
    MAX_NEW_TOKENS,
    MAX_STEPS,
    GenerationParameters,
    Language,
    ModelName,
    RequestModel,
    Text,
    TokenId,
)

NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Glassformer</title>
<p>This installation of Glassformer has no page. The <a href="docs">HTTP interface</a> works.</p></html>
"""

TraceId = Annotated[str, Path(max_length=64)]
RunId = Annotated[str, Path(max_length=200)]
Position = Annotated[int | None, Query(ge=0, lt=2**31)]
Count = Annotated[int, Query(ge=1, le=1000)]


class TraceSeries(RequestModel):
    """Columns of numbers; the last `truth` values of each are held back."""

    columns: Annotated[
        dict[str, Annotated[list[float], Field(max_length=MAX_STEPS)]],
        Field(min_length=1, max_length=MAX_COLUMNS),
    ]
    truth: Annotated[int, Field(ge=0, le=MAX_STEPS)] | None = None


class TraceRequest(RequestModel):
    """POST /trace: an input, of which the keys depend on the model, and interventions."""

    model_config = ConfigDict(strict=False)  # JSON has no tuples

    model: ModelName
    text: Text | None = None
    target: Text | Annotated[list[TokenId], Field(max_length=MAX_IDS)] | None = None
    image: Annotated[str, Field(max_length=MAX_IMAGE)] | None = None
    series: TraceSeries | None = None
    to: Language | None = None
    question: Text | None = None
    context: Text | None = None
    changes: (
        Annotated[
            list[Annotated[schema.Intervention, Field(discriminator="kind")]], Field(max_length=MAX_CHANGES)
        ]
        | None
    ) = None

    @field_validator("changes")
    @classmethod
    def _check_indices(cls, changes: list[schema.Intervention] | None) -> list[schema.Intervention] | None:
        for change in changes or ():
            values = [value if isinstance(value, tuple) else (value,) for value in vars(change).values()]
            if any(isinstance(item, int) and not 0 <= item < 2**31 for value in values for item in value):
                raise ValueError("heads and positions are counted from 0")
        return changes


class SentencesRequest(RequestModel):
    """POST /trace/sentences."""

    model: ModelName
    text: Text
    to: Language | None = None


class StepRequest(SentencesRequest):
    """POST /trace/step: which tokens may follow those generated so far."""

    written: Annotated[list[TokenId], Field(max_length=MAX_NEW_TOKENS)] | None = None
    count: Annotated[int, Field(ge=1, le=1000)] = 50
    settings: GenerationParameters | None = None


class SearchRequest(GenerationParameters):
    """POST /trace/search: a beam search to show as a tree."""

    model: ModelName
    text: Text
    to: Language | None = None


class ModelsResponse(BaseModel):
    """The models and training runs that can be explored."""

    models: list[schema.ModelInfo]
    runs: list[schema.RunInfo]


class SentencesResponse(BaseModel):
    """The sentences of a text."""

    sentences: list[str]


def trace_router(explored: Explored) -> APIRouter:
    """The routes over these models, runs and traces."""
    router = APIRouter(tags=["trace"])
    films = Films(explored.store)

    @router.get("/models", response_model=ModelsResponse)
    def models() -> JSONResponse:
        """List the models and training runs."""
        return _json({"models": explored.models(), "runs": _runs(explored)})

    @router.post("/trace", response_model=schema.TraceInfo)
    def trace(body: TraceRequest) -> JSONResponse:
        """Run a model on an input and record every tensor; a repeated request is answered from the store."""
        return JSONResponse(explored.take(body.model_dump(exclude_none=True)).info())

    @router.get("/trace/{id}", response_model=schema.TraceInfo)
    def get_trace(id: TraceId) -> JSONResponse:
        """A stored trace."""
        return JSONResponse(explored.trace(id).info())

    @router.get("/trace/{id}/tensor", response_class=Response)
    def tensor(
        id: TraceId,
        name: Annotated[str, Query(max_length=200)],
        slices: Annotated[str, Query(alias="slice", max_length=200)] = "",
        pool: Annotated[int | None, Query(ge=1, le=4096)] = None,
        minus: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Response:
        """Part of a tensor, little-endian and row-major; the headers have its shape and dtype."""
        other = None if minus is None else explored.trace(minus)
        found = cut(explored.trace(id), name, slices, pool=pool, minus=other)
        headers = {"X-Shape": ",".join(map(str, found.shape)), "X-Dtype": found.dtype}
        return Response(found.data(), media_type="application/octet-stream", headers=headers)

    @router.get("/trace/{id}/next", response_model=schema.NextInfo)
    def next_tokens(id: TraceId, position: Position = None, count: Count = 50) -> JSONResponse:
        """The most likely next tokens at a position."""
        return _json(next_info(explored.trace(id), position, count))

    @router.get("/trace/{id}/heads", response_model=schema.HeadsInfo)
    def heads(id: TraceId) -> JSONResponse:
        """What every attention head does, compared with chance."""
        return _json(heads_info(explored.trace(id)))

    @router.get("/trace/{id}/lens", response_model=schema.LensInfo)
    def lens(id: TraceId, position: Position = None, top: Count = 10) -> JSONResponse:
        """The logit lens: what the output head predicts after each layer."""
        return _json(lens_info(explored.trace(id), position, top))

    @router.get("/trace/{id}/unit", response_model=schema.UnitInfo)
    def unit(
        id: TraceId,
        ffn: Annotated[str, Query(max_length=200)],
        unit: Annotated[int, Query(ge=0, lt=2**31)],
        top: Annotated[int, Query(ge=1, le=200)] = 12,
    ) -> JSONResponse:
        """The tokens that a feed-forward unit promotes and suppresses."""
        return _json(unit_info(explored.trace(id), ffn, unit, top))

    @router.get("/trace/{id}/difference/{other}", response_model=schema.DifferenceInfo)
    def difference(id: TraceId, other: TraceId) -> JSONResponse:
        """What changed from one trace to another."""
        return _json(difference_info(explored.trace(id), explored.trace(other)))

    @router.post("/trace/sentences", response_model=SentencesResponse)
    def sentences(body: SentencesRequest) -> JSONResponse:
        """The sentences that `translate` would translate one by one."""
        from glassformer.interpret.sentences import sentences_of

        return _json({"sentences": sentences_of(explored.bundle(body.model), body.text, body.to)})

    @router.post("/trace/step", response_model=schema.StepInfo)
    def step(body: StepRequest) -> JSONResponse:
        """One step of generation."""
        from glassformer.interpret.search import step_info

        found = step_info(
            explored.bundle(body.model),
            text=body.text,
            written=body.written or (),
            to=body.to,
            count=body.count,
            settings=body.settings.generation_options() if body.settings is not None else {},
        )
        return _json(found)

    @router.post("/trace/search", response_model=schema.SearchInfo)
    def search(body: SearchRequest) -> JSONResponse:
        """A beam search as a tree."""
        from glassformer.interpret.search import search_info

        bundle = explored.bundle(body.model)
        return _json(search_info(bundle, text=body.text, to=body.to, **body.generation_options()))

    @router.get("/runs/{id}", response_model=schema.RunInfo)
    def run(id: RunId) -> JSONResponse:
        """A training run so far: curves, samples and checkpoints."""
        return _json(run_info(_run(explored, id), id=id))

    @router.get("/runs/{id}/film", response_model=schema.SnapshotsInfo)
    def film(
        id: RunId,
        text: Annotated[str | None, Query(max_length=4000)] = None,
        target: Annotated[str | None, Query(max_length=4000)] = None,
        most: Annotated[int, Query(ge=2, le=MAX_FRAMES)] = MAX_FRAMES,
    ) -> JSONResponse:
        """Traces of one input with the weights of successive checkpoints."""
        return _json(films.film(_run(explored, id), id=id, text=text, target=target, most=most))

    return router


def _json(content: Any) -> JSONResponse:
    return JSONResponse(as_json(content))


def _runs(explored: Explored) -> list[dict[str, Any]]:
    """Summaries of the runs; a folder that is gone or still empty is left out."""
    found = []
    for id, folder in explored.runs.items():
        with suppress(GlassformerError):
            found.append(run_info(folder, id=id, curves=False))
    return found


def _run(explored: Explored, id: str) -> Any:
    if id not in explored.runs:
        known = ", ".join(explored.runs) or "none"
        raise UnknownNameError(f"there is no run '{id[:80]}'; there are: {known}")
    return explored.runs[id]


class PageFiles(StaticFiles):
    """Static files with cache headers: names below assets/ contain a hash of their content."""

    def file_response(self, full_path: PathLike[str] | str, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        immutable = "/assets/" in str(full_path)
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if immutable else "no-cache"
        return response


def mount_page(app: FastAPI) -> None:
    """Serve the built page: /, /index.html, /assets/... and a route for each other file."""
    try:
        names = files()
    except GlassformerError:
        app.add_api_route("/", lambda: HTMLResponse(NOT_BUILT), methods=["GET"], include_in_schema=False)
        return
    static = PageFiles(directory=FOLDER)

    async def index(request: Request) -> Response:
        return await static.get_response("index.html", request.scope)

    async def file(request: Request) -> Response:
        return await static.get_response(request.url.path.lstrip("/"), request.scope)

    app.add_api_route("/", index, methods=["GET"], include_in_schema=False)
    for name in names:
        app.add_api_route(f"/{name}", file, methods=["GET"], include_in_schema=False)
