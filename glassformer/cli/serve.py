"""glassformer serve MODEL...: serve models over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from glassformer.cli.model_argument import load_model
from glassformer.cli.options import Device, Dtype, Port, Threads
from glassformer.errors import MissingDependencyError
from glassformer.pretrained import located

LIMITS_PANEL = "Limits"


def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Model folders, run folders or shipped models."),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but localhost requires a token.")
    ] = "127.0.0.1",
    port: Port = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="GLASSFORMER_TOKEN",
            show_envvar=True,
            show_default=False,
            help="Token that clients must send (Authorization: Bearer TOKEN).",
        ),
    ] = None,
    queue: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="Maximum number of open requests.", rich_help_panel=LIMITS_PANEL
        ),
    ] = 256,
    slots: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            help="Batch slots per model; a request takes one per beam.",
            rich_help_panel=LIMITS_PANEL,
        ),
    ] = 32,
    seconds: Annotated[
        float, typer.Option(min=0.1, max=86_400, help="Request timeout.", rich_help_panel=LIMITS_PANEL)
    ] = 300.0,
    threads: Threads = None,
    device: Device = "auto",
    dtype: Dtype = None,
) -> None:
    """Serve models over HTTP: OpenAI routes, task routes, and the explorer.

    Listens on localhost unless --host is given. Ctrl-C or SIGTERM finishes
    open requests and exits; a second one exits at once.
    """
    run_server(
        models,
        host=host,
        port=port,
        token=token,
        limits={"queue": queue, "seconds": seconds},
        slots=slots,
        load=partial(load_model, device=device, dtype=dtype, threads=threads),
        on_ready=_print_urls,
    )


def run_server(
    models: Sequence[str],
    *,
    port: int,
    host: str = "127.0.0.1",
    token: str | None = None,
    limits: Mapping[str, Any] | None = None,
    slots: int = 32,
    load: Callable[[str], Any],
    on_ready: Callable[[str, list[str]], None],
    check: Callable[[Mapping[str, Any]], None] = lambda bundles: None,
) -> None:
    """Serve until stopped. on_ready: gets the URL and the model names. check: may reject the models."""
    try:
        from glassformer.server.run import listen, run
        from glassformer.server.security import Address

        Address(host=host, port=port, token=token)  # fail before torch and the models are loaded
        sock = listen(host, port)
        from glassformer.server.app import create_app
        from glassformer.server.limits import Limits
        from glassformer.server.models import load_models
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("glassformer"):
            raise
        raise MissingDependencyError(package=str(error.name), extra="serve") from None
    with sock:
        bundles, runs = load_models([str(located(model)) for model in models], load)
        check(bundles)
        address = Address(host=host, port=sock.getsockname()[1], token=token)
        app = create_app(bundles, runs=runs, address=address, limits=Limits(**(limits or {})), slots=slots)
        run(app, sock, on_ready=lambda: on_ready(address.url, list(bundles)))


def _print_urls(url: str, models: list[str]) -> None:
    typer.echo(f"serving {', '.join(models)}")
    typer.echo(f"  page      {url}/")
    typer.echo(f"  OpenAI    {url}/v1")
    typer.echo(f"  API docs  {url}/docs")
