"""The server on Ray Serve: several replicas behind one address, on one machine or a cluster.

    serve run glassformer.server.ray_serve:app_builder model=pocket-lm max_replicas=4

A replica is a process with the models and the application of `create_app`. Limits, rate limits of API keys
and /metrics are those of one replica.
"""

# Ray Serve reads the annotation of app_builder, so that annotations must not be strings here
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.types import ASGIApp, Receive, Scope, Send

from glassformer.bundle import load
from glassformer.core.precision import resolve_device
from glassformer.errors import MissingDependencyError, MissingValueError
from glassformer.inference.memory import limit_onednn_cache
from glassformer.pretrained import resolve_name
from glassformer.server import KEY_VARIABLE, check_key_variables
from glassformer.server.api_keys import KeyStore
from glassformer.server.app import create_app
from glassformer.server.errors import error_response
from glassformer.server.limits import Limits
from glassformer.server.models import load_models
from glassformer.server.run import configure_logging
from glassformer.server.security import Address, is_loopback

if TYPE_CHECKING:
    from ray.serve import Application

NAME = "glassformer"
SHUTDOWN_SECONDS = 30


class RayServeOptions(BaseModel):
    """Options of an application. On the command line they are written as name=value, lists with commas.

    model: folders, runs or shipped models; all are loaded by every replica.
    min_replicas, max_replicas: autoscaling adds replicas if each has more than `target_ongoing_requests`.
    num_cpus, num_gpus: that Ray reserves for a replica; a replica computes with `num_cpus` threads.
    The other options are those of `glassformer serve`. An API key is read from GLASSFORMER_API_KEY.
    """

    model_config = ConfigDict(extra="forbid")

    model: list[str] = Field(min_length=1)
    min_replicas: int = Field(1, ge=0)
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: float = Field(16, gt=0)
    num_cpus: float = Field(1, ge=0)
    num_gpus: float = Field(0, ge=0)
    api_keys_file: Path | None = None
    allowed_hosts: list[str] = []
    cors_origins: list[str] = []
    max_requests: int = Field(256, ge=1)
    request_timeout: float = Field(300.0, gt=0)
    slots: int = Field(32, ge=1)
    max_batch_total_tokens: int | None = Field(None, ge=1)
    device: str = "auto"
    dtype: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @field_validator("model", "allowed_hosts", "cors_origins", mode="before")
    @classmethod
    def split_list(cls, value: Any) -> Any:
        return (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )


def app_builder(options: RayServeOptions) -> "Application":
    """Build the Ray Serve application. In a Serve config, `args` has the options."""
    try:
        from ray import serve
    except ImportError as error:
        raise MissingDependencyError(str(error.name or "ray"), extra="ray") from None
    models = [str(Path(name).absolute()) if Path(name).is_dir() else name for name in options.model]
    options = options.model_copy(update={"model": models})
    check_key_variables()
    api_key = os.environ.get(KEY_VARIABLE) or None
    KeyStore(api_key)  # fail before replicas start

    def build() -> ASGIApp:
        return build_replica(options, api_key)

    replicas: dict[str, Any] = {"num_replicas": options.max_replicas}
    if options.min_replicas < options.max_replicas:
        names = ("min_replicas", "max_replicas", "target_ongoing_requests")
        replicas = {"autoscaling_config": {name: getattr(options, name) for name in names}}
    deployment: Any = serve.deployment(
        serve.ingress(build)(),
        name=NAME,
        max_ongoing_requests=options.max_requests,
        graceful_shutdown_timeout_s=SHUTDOWN_SECONDS,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        **replicas,
    )
    return deployment.bind()


def build_replica(options: RayServeOptions, api_key: str | None = None) -> ASGIApp:
    """Load the models in this process, and return the application for them."""
    limit_onednn_cache()
    configure_logging(options.log_level, options.log_format)
    torch.set_num_threads(max(1, int(options.num_cpus)))
    keys = KeyStore(api_key, options.api_keys_file)
    address = Address(
        needs_key=bool(keys),
        allowed_hosts=tuple(options.allowed_hosts),
        cors_origins=tuple(options.cors_origins),
    )
    device = resolve_device(options.device)
    bundles, runs = load_models(
        [str(resolve_name(model)) for model in options.model],
        lambda folder: load(folder, device=device, dtype=options.dtype, mmap=False),
    )
    app = create_app(
        bundles,
        runs=runs,
        address=address,
        keys=keys,
        limits=Limits(max_requests=options.max_requests, timeout=options.request_timeout),
        slots=options.slots,
        max_batch_total_tokens=options.max_batch_total_tokens,
    )
    return ReplicaApp(app, needs_key=bool(keys))


class ReplicaApp:
    """The application behind Ray's proxy: has no route prefix and, without a key, only local clients."""

    def __init__(self, app: ASGIApp, *, needs_key: bool) -> None:
        self._app, self._needs_key = app, needs_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
            scope = {**scope, "path": path, "root_path": ""}
            if not self._needs_key and not is_loopback((scope.get("client") or ("",))[0]):
                hint = "set GLASSFORMER_API_KEY or api_keys_file"
                error = MissingValueError("api_key", "to serve clients on other machines", hint)
                await error_response(error, status=403)(scope, receive, send)
                return
        await self._app(scope, receive, send)
