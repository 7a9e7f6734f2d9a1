"""The ASGI application: routes, error handlers and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import torch
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from glassformer import __version__
from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.interpret.catalog import Catalog
from glassformer.server.errors import (
    ErrorResponse,
    UnavailableError,
    error_response,
    http_error,
    validation_error,
)
from glassformer.server.explorer import mount_page, trace_router
from glassformer.server.limits import Limits, LimitsMiddleware
from glassformer.server.metrics import CONTENT_TYPE, Metrics
from glassformer.server.models import ModelRegistry
from glassformer.server.openai import openai_router
from glassformer.server.openapi import openapi_document, render
from glassformer.server.schema import Health
from glassformer.server.security import Address, SecurityMiddleware
from glassformer.server.tasks import tasks_router

TRACE_THREADS = 4
ERRORS: tuple[Any, ...] = (GlassformerError, RequestValidationError, HTTPException, Exception)
MEMORY_ERRORS: tuple[Any, ...] = (MemoryError, torch.OutOfMemoryError)


def create_app(
    bundles: Mapping[str, Bundle],
    *,
    address: Address | None = None,
    runs: Mapping[str, Path] | None = None,
    limits: Limits | None = None,
    slots: int = 32,
) -> FastAPI:
    """Create the application for these models and runs. slots: texts that a model generates concurrently."""
    address = address or Address()
    models = ModelRegistry(bundles, slots=slots)
    metrics = Metrics(models)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = TRACE_THREADS
        yield
        models.close()

    app = FastAPI(
        title="Glassformer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        separate_input_output_schemas=False,
        responses={"4XX": {"model": ErrorResponse}, "5XX": {"model": ErrorResponse}},
        exception_handlers=dict.fromkeys((*ERRORS, *MEMORY_ERRORS), handle_error),
    )
    app.openapi = lambda: openapi_document(app)  # type: ignore[method-assign]

    @app.get("/health", tags=["server"])
    async def health() -> Health:
        """Report that the server is up."""
        return Health(version=__version__, models=list(models))

    @app.get("/metrics", tags=["server"], response_class=Response)
    async def prometheus() -> Response:
        """Return metrics in Prometheus format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(render(app.openapi()))

    app.include_router(openai_router(models, metrics))
    app.include_router(tasks_router(models, metrics))
    app.include_router(trace_router(Catalog(bundles, runs)))
    mount_page(app)
    # the middleware added last runs first
    app.add_middleware(LimitsMiddleware, limits=limits or Limits(), metrics=metrics)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=address.allowed_hosts, www_redirect=False)
    app.add_middleware(SecurityMiddleware, address=address)
    return app


async def handle_error(request: Request, error: Exception) -> Response:
    """Send every error as an `ErrorResponse`."""
    match error:
        case GlassformerError():
            return error_response(error)
        case RequestValidationError():
            return error_response(validation_error(error))
        case HTTPException():
            return error_response(http_error(request, error), error.headers)
    if isinstance(error, MEMORY_ERRORS):
        return error_response(UnavailableError("there is not enough memory for this request"))
    unexpected = UnavailableError("internal error: this is a bug; the server's log has the traceback")
    return error_response(unexpected, status=500)
