"""glassformer serve: serve models over HTTP."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from glassformer.cli.console import message
from glassformer.cli.options import DeviceOptions, Port, optional, with_options
from glassformer.errors import InvalidValueError, MissingDependencyError, MissingValueError
from glassformer.pretrained import resolve_name
from glassformer.server import KEY_VARIABLE, check_key_variables

_access = partial(typer.Option, rich_help_panel="Access", show_default=False)
_limit = partial(typer.Option, rich_help_panel="Limits")
_log = partial(typer.Option, rich_help_panel="Logs and metrics")


@dataclass(kw_only=True)
class ServeOptions(DeviceOptions):
    """Options of a server."""

    served_model_name: Annotated[
        list[str] | None,
        optional(
            help="Name of the model in requests (default: its folder's). Repeatable: one for each model, or "
            "further names of a single model."
        ),
    ] = None
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than localhost requires an API key.")
    ] = "127.0.0.1"
    port: Port = 8000
    uds: Annotated[Path | None, optional(help="Listen on this Unix socket instead of a port.")] = None
    api_key: Annotated[
        str | None,
        _access(
            envvar=KEY_VARIABLE,
            show_envvar=True,
            help="Key that clients must send (Authorization: Bearer KEY). Prefer the variable: other users "
            "of the machine can read options.",
        ),
    ] = None
    api_keys_file: Annotated[
        Path | None, _access(help="JSON file of API keys with their limits; read again when it changes.")
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        _access(
            help="Host name that the server answers to, or * for any. Repeatable (default: any with an API "
            "key, else only localhost)."
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        _access(
            help="Origin of web pages that may use the server, e.g. https://example.com, or *. Repeatable."
        ),
    ] = None
    forwarded_allow_ips: Annotated[
        str | None,
        _access(
            envvar="FORWARDED_ALLOW_IPS",
            help="Addresses of proxies whose X-Forwarded-* headers are trusted, or * (default: none).",
        ),
    ] = None
    ssl_certfile: Annotated[Path | None, _access(help="TLS certificate (PEM), to serve HTTPS.")] = None
    ssl_keyfile: Annotated[Path | None, _access(help="Private key of the certificate (PEM).")] = None
    max_requests: Annotated[
        int,
        _limit(min=1, max=100_000, help="Maximum number of open requests; further requests get status 429."),
    ] = 256
    slots: Annotated[
        int, _limit(min=1, max=1024, help="Number of batch slots per model; each beam takes one slot.")
    ] = 32
    max_model_len: Annotated[
        int | None,
        _limit(
            min=2,
            show_default=False,
            help="Maximum number of tokens of a prompt and its answer (default: the model's context).",
        ),
    ] = None
    max_image_tokens: Annotated[
        int | None,
        _limit(
            min=1,
            show_default=False,
            help="Maximum number of tokens of an image in a conversation; a large image is then read in less "
            "detail (default: as the model's folder says).",
        ),
    ] = None
    max_batch_total_tokens: Annotated[
        int | None,
        _limit(
            min=1,
            show_default=False,
            help="Tokens in all slots of a model, including those to be generated (default: 65,536, or as "
            "many as fit into half of the free memory).",
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool,
        _limit(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the KV cache of prompts that begin alike.",
        ),
    ] = True
    request_timeout: Annotated[
        float,
        _limit(
            "--request-timeout",
            "--timeout",
            min=0.1,
            max=86_400,
            help="Seconds per request; a request can ask for less with the header X-Request-Timeout.",
        ),
    ] = 300.0
    log_format: Annotated[Literal["text", "json"], _log(help="Format of the log on stderr.")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _log(help="Lowest level that is logged.")
    ] = "info"
    metrics_port: Annotated[
        int | None,
        _log(
            min=1, max=65535, show_default=False, help="Also serve /metrics on this port, without an API key."
        ),
    ] = None
    metrics_host: Annotated[
        str | None, _log(show_default=False, help="Address of the metrics port (default: --host).")
    ] = None


@with_options(ServeOptions)
def serve(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model folders, run folders or shipped models.")
    ],
    *,
    options: ServeOptions,
) -> None:
    """Serve models over HTTP: OpenAI routes, task routes, and the explorer.

    Listens on localhost unless --host is given. Ctrl-C or SIGTERM finishes
    open requests and exits; a second one exits at once.
    """
    if options.metrics_host is not None and options.metrics_port is None:
        raise MissingValueError(name="metrics_port", needed_for="with --metrics-host")
    if options.api_key is None and options.api_keys_file is None:
        check_key_variables()
    if options.api_key is not None and options.api_key != os.environ.get(KEY_VARIABLE):
        message("note: other users of this machine can read --api-key; set GLASSFORMER_API_KEY instead")
    run_server(models, options, on_ready=_print_urls)


def run_server(
    models: Sequence[str],
    options: ServeOptions,
    *,
    on_ready: Callable[[str, list[str]], None],
    check: Callable[[Mapping[str, Any]], None] = lambda bundles: None,
) -> None:
    """Serve until stopped. on_ready: called with URL and model names. check: raises to reject models."""
    try:
        from glassformer.server.api_keys import KeyStore
        from glassformer.server.run import HttpOptions, configure_logging, listen, listen_unix, run
        from glassformer.server.security import Address

        keys = KeyStore(options.api_key, options.api_keys_file)  # fail before torch and the models are loaded
        http = HttpOptions(
            forwarded_allow_ips=options.forwarded_allow_ips,
            ssl_certfile=options.ssl_certfile,
            ssl_keyfile=options.ssl_keyfile,
        )
        host, uds = options.host, options.uds
        address = Address(
            host=host,
            port=options.port,
            uds=None if uds is None else str(uds),
            needs_key=bool(keys),
            allowed_hosts=tuple(options.allowed_host or ()),
            cors_origins=tuple(options.cors_origin or ()),
            tls=http.ssl_certfile is not None,
        )
        sock = listen(host, options.port) if uds is None else listen_unix(uds)
        from glassformer.inference.memory import limit_malloc_arenas, limit_onednn_cache
        from glassformer.server.app import create_app
        from glassformer.server.limits import Limits
        from glassformer.server.models import load_models
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("glassformer"):
            raise
        raise MissingDependencyError(package=str(error.name), extra="serve") from None
    limit_onednn_cache()
    limit_malloc_arenas()
    configure_logging(options.log_level, options.log_format)
    names, load = options.served_model_name or (), partial(options.load, mmap=False)
    with sock, ExitStack() as stack:
        bundles, runs = load_models([str(resolve_name(model)) for model in models], load, names)
        check(bundles)
        if uds is None:
            address = replace(address, port=sock.getsockname()[1])
        app = create_app(
            bundles,
            runs=runs,
            address=address,
            keys=keys,
            limits=Limits(max_requests=options.max_requests, timeout=options.request_timeout),
            aliases=dict.fromkeys(names[len(bundles) :], next(iter(bundles))),
            slots=options.slots,
            max_model_len=options.max_model_len,
            max_batch_total_tokens=options.max_batch_total_tokens,
            max_image_tokens=options.max_image_tokens,
            enable_prefix_caching=options.enable_prefix_caching,
        )
        if options.metrics_port is not None:
            metrics_host = options.metrics_host or host
            stack.callback(_serve_metrics(app.state.metrics.registry, metrics_host, options.metrics_port))
        is_main_thread = threading.current_thread() is threading.main_thread()
        if options.api_keys_file is not None and hasattr(signal, "SIGHUP") and is_main_thread:
            signal.signal(signal.SIGHUP, lambda *_: keys.reload())

        def drain() -> None:
            app.state.server.draining = True

        url = address.url if uds is None else f"unix:{uds}"
        run(app, sock, on_ready=lambda: on_ready(url, list(bundles)), on_exit=drain, options=http)


def _serve_metrics(registry: Any, host: str, port: int) -> Callable[[], None]:
    """Serve the metrics on an address of their own; return a function that stops it."""
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        expected = f"a free port of {host} ({error.strerror})"
        raise InvalidValueError("metrics_port", port, expected, hint="choose another port") from None
    return server.shutdown


def _print_urls(url: str, models: list[str]) -> None:
    typer.echo(f"serving {', '.join(models)}")
    typer.echo(f"  page      {url}/")
    typer.echo(f"  OpenAI    {url}/v1")
    typer.echo(f"  API docs  {url}/docs")
