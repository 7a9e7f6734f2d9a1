"""The ASGI application: routes, error handlers and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import torch
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from glassformer import __version__
from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.interpret.catalog import Catalog
from glassformer.server.api_keys import KeyStore
from glassformer.server.errors import (
    ErrorResponse,
    UnavailableError,
    error_response,
    http_error,
    openai_error,
    validation_error,
)
from glassformer.server.explorer import mount_page, trace_router
from glassformer.server.images import images_router
from glassformer.server.limits import Limits, LimitsMiddleware, ServerState
from glassformer.server.metrics import CONTENT_TYPE, Metrics
from glassformer.server.models import ModelRegistry
from glassformer.server.openai import openai_router
from glassformer.server.openapi import openapi_document, render
from glassformer.server.schema import Health
from glassformer.server.security import Address, SecurityMiddleware
from glassformer.server.tasks import tasks_router

TRACE_THREADS = 4
TOKENIZER_THREADS = 4  # requests whose texts are encoded at the same time
CORS = {
    "allow_methods": ["GET", "POST"],
    "allow_headers": ["Authorization", "Content-Type", "X-Request-ID", "X-Request-Timeout"],
    "expose_headers": ["Retry-After", "X-Request-ID", "X-Shape", "X-Dtype"],
}
ERRORS: tuple[Any, ...] = (GlassformerError, RequestValidationError, HTTPException, Exception)
MEMORY_ERRORS: tuple[Any, ...] = (MemoryError, torch.OutOfMemoryError)


def create_app(
    bundles: Mapping[str, Bundle],
    *,
    address: Address | None = None,
    keys: KeyStore | None = None,
    runs: Mapping[str, Path] | None = None,
    limits: Limits | None = None,
    aliases: Mapping[str, str] | None = None,
    slots: int = 32,
    max_batch_total_tokens: int | None = None,
    max_model_len: int | None = None,
    max_image_tokens: int | None = None,
    enable_prefix_caching: bool = True,
) -> FastAPI:
    """Create the application for these models and runs.

    address: where the server listens. keys: the API keys of its clients; none by default.
    slots: texts that a model generates concurrently. max_batch_total_tokens: tokens of all these texts,
    including those still to be generated (default: as many as fit into memory). max_model_len: tokens of a
    prompt and its answer (default: the model's context). aliases: further names of models.
    max_image_tokens: tokens of an image in a conversation, which is then read in less detail.
    enable_prefix_caching: prompts that begin alike share the keys and values of their beginning.
    `app.state.server` is the server's `ServerState`, and `app.state.metrics` has its metrics.
    """
    address, keys = address or Address(), keys or KeyStore()
    models = ModelRegistry(
        bundles,
        aliases=aliases,
        slots=slots,
        tokens=max_batch_total_tokens,
        max_model_len=max_model_len,
        max_image_tokens=max_image_tokens,
        enable_prefix_caching=enable_prefix_caching,
    )
    metrics = Metrics(models)
    state = ServerState(limits=limits or Limits())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = TRACE_THREADS
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(TOKENIZER_THREADS))
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

    app.state.server, app.state.metrics = state, metrics

    @app.get("/health", tags=["server"])
    async def health() -> Health:
        """Report that the server is up (liveness). No API key is needed."""
        return Health()

    @app.get("/ready", tags=["server"])
    async def ready() -> Health:
        """Report that the server takes requests (readiness); else status 429 or 503. No API key is needed."""
        state.check_ready()
        models.check_ready()
        return Health()

    for path, probe in (("/health", health), ("/ready", ready)):
        app.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)

    @app.get("/metrics", tags=["server"], response_class=Response)
    async def prometheus() -> Response:
        """Return metrics in Prometheus format."""
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(render(app.openapi()))

    app.include_router(openai_router(models, metrics))
    app.include_router(images_router(models))
    app.include_router(tasks_router(models, metrics))
    app.include_router(trace_router(Catalog(bundles, runs)))
    mount_page(app)
    # the middleware added last runs first
    app.add_middleware(LimitsMiddleware, state=state, metrics=metrics)
    app.add_middleware(SecurityMiddleware, address=address, keys=keys)
    if address.cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=address.cors_origins, **CORS)  # type: ignore[arg-type]
    return app


async def handle_error(request: Request, error: Exception) -> Response:
    """Send every error as an `ErrorResponse`."""
    match error:
        case GlassformerError():
            is_openai = request.url.path.startswith("/v1/")
            return error_response(openai_error(error) if is_openai else error)
        case RequestValidationError():
            return error_response(validation_error(error))
        case HTTPException():
            return error_response(http_error(request, error), error.headers)
    if isinstance(error, MEMORY_ERRORS):
        return error_response(UnavailableError("there is not enough memory for this request"))
    unexpected = UnavailableError("internal error: this is a bug; the server's log has the traceback")
    return error_response(unexpected, status=500)
