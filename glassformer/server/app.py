"""The application: routes, what is told when something is wrong, and around them the bounds and the guard."""

from __future__ import annotations

import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import torch
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from glassformer import __version__
from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.continuous import Stats
from glassformer.server import docs, exploring, login, openai, page, tracing, verbs
from glassformer.server.answers import GaveUp, Refused, keyed, kind_of, phrase, problem, told
from glassformer.server.guard import Address, App, Guard
from glassformer.server.limits import Limits
from glassformer.server.metrics import KIND, Metrics, memory
from glassformer.server.models import Models
from glassformer.server.passage import Left, Passage

THREADS = 4  # in which traces are taken and read


def app(
    bundles: Mapping[str, Bundle],
    *,
    address: Address,
    runs: Mapping[str, Path] | None = None,
    limits: Limits | None = None,
    slots: int = 32,
    files: dict[str, page.File] | None = None,
) -> App:
    """Everything that is served, as one ASGI application."""
    limits = limits or Limits()
    models, metrics = Models(bundles, slots=slots), Metrics()

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
        yield
        models.close()

    made = FastAPI(
        title="Glassformer",
        version=__version__,
        lifespan=living,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _explain(made)
    _watch(metrics, models)

    @made.get("/health", tags=["about"])
    async def health() -> dict[str, Any]:
        """Whether the server answers."""
        return {"status": "ok", "version": __version__, "models": list(models)}

    @made.get("/metrics", tags=["about"], response_class=Response)
    async def measured() -> Response:
        """Counts for Prometheus."""
        return Response(metrics.page(), media_type=KIND)

    made.include_router(openai.routes(models, metrics))
    made.include_router(verbs.routes(models, metrics))
    explored = tracing.Explored(bundles=dict(bundles), runs=dict(runs or {}))
    made.include_router(tracing.routes(explored))
    made.include_router(exploring.routes(explored))
    made.include_router(docs.routes(made))
    made.include_router(login.routes(address))
    made.include_router(page.routes(page.files() if files is None else files))
    return Guard(Passage(made, limits, metrics), address)


def _watch(metrics: Metrics, models: Models) -> None:
    def stats() -> dict[str, Stats]:
        return {name: one.writing.stats() for name, one in models.items() if one.writing is not None}

    def rows() -> dict[str, float]:
        return {name: one.rows for name, one in stats().items()}

    def waiting() -> dict[str, float]:
        return {name: one.waiting for name, one in stats().items()}

    metrics.watch("slots_used", "Texts being written.", "model", rows)
    metrics.watch("queue_length", "Texts that wait for a slot.", "model", waiting)
    metrics.watch("memory_bytes", "Memory of this process.", "kind", memory)


def _explain(made: FastAPI) -> None:
    """Every error in the same shape, one sentence each."""

    @made.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse(told(error), error.status, headers=error.headers)

    @made.exception_handler(GlassformerError)
    async def wrong(_: Request, error: GlassformerError) -> JSONResponse:
        return JSONResponse(problem(keyed(str(error))), 422)

    @made.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        sentence, param = _sentence(error)
        return JSONResponse(problem(sentence, param=param), 422)

    @made.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        status = error.status_code
        sentence = (
            f"{_in_words(status, request.method, error.headers or {})}; see /docs for what can be asked"
        )
        return JSONResponse(problem(sentence, kind=kind_of(status)), status, headers=error.headers)

    @made.exception_handler(MemoryError)
    @made.exception_handler(torch.OutOfMemoryError)
    async def full(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse(told(GaveUp("there is not enough memory for this request; ask for less")), 503)

    @made.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, Left):
            traceback.print_exception(error, limit=-6, file=sys.stderr)
        sentence = "this is a bug in glassformer; the server's own output tells more"
        return JSONResponse(problem(sentence, kind="server_error"), 500)


def _in_words(status: int, method: str, headers: Mapping[str, str]) -> str:
    """What a status says of a path.

    >>> _in_words(405, "GET", {"allow": "POST"}), _in_words(418, "GET", {})
    ('this path is not for GET but for POST', "I'm a Teapot")
    """
    if status == 404:
        return "there is nothing at this path"
    if status == 405:
        taken = {name.lower(): value for name, value in headers.items()}.get("allow", "another method")
        return f"this path is not for {method} but for {taken}"
    return phrase(status)


BODY = {  # what is wrong with a body as a whole
    "missing": "the body is empty; send a JSON object, with the keys that /docs tells",
    "model_attributes_type": "the body is no JSON object; send one, with the keys that /docs tells",
}


def _sentence(error: RequestValidationError) -> tuple[str, str | None]:
    """What is wrong with the first thing that is, and its name."""
    problems = error.errors()
    first = problems[0]
    if first["loc"] == ("body",) and first["type"] in BODY:
        return BODY[first["type"]], None
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    param = place[0] if place else None
    of_it = [one for one in problems if param is not None and param in map(str, one["loc"])]
    said = list(dict.fromkeys(str(one["msg"]) for one in of_it)) or [str(first["msg"])]
    words = "; or ".join(said[:4])
    return f"{param}: {words}" if param else words, param
