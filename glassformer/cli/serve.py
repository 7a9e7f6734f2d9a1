"""glassformer serve MODEL...: models over HTTP, for programs and for the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from glassformer.cli import source
from glassformer.errors import GlassformerError
from glassformer.pretrained import located

SERVING = "What it takes on"
MACHINE = "Where it runs"
EXTRA = "pip install 'glassformer[serve]'"


def serve(
    models: list[str] = typer.Argument(
        ...,
        metavar="MODEL...",
        help="Model folders, run folders with a model in them, or models that come along: pocket pocket-lm.",
        show_default=False,
    ),
    host: str = typer.Option(
        "127.0.0.1", help="The address to listen on; any but this machine's needs a token."
    ),
    port: int = typer.Option(8000, min=0, max=65535, help="The port; 0 takes a free one."),
    token: str | None = typer.Option(
        None,
        envvar="GLASSFORMER_TOKEN",
        show_envvar=True,
        help="What clients must show (Authorization: Bearer TOKEN); better kept in the variable.",
        show_default=False,
    ),
    queue: int = typer.Option(
        256, min=1, max=100_000, help="Requests answered or waiting at a time.", rich_help_panel=SERVING
    ),
    slots: int = typer.Option(
        32,
        min=1,
        max=1024,
        help="Rows a model writes at a time: a text takes one, a search with 4 beams takes 4.",
        rich_help_panel=SERVING,
    ),
    seconds: float = typer.Option(
        300.0, min=0.1, max=86_400, help="The longest an answer may take.", rich_help_panel=SERVING
    ),
    threads: int | None = typer.Option(
        None,
        min=1,
        help="CPU threads; by itself as many as cores.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:1.", rich_help_panel=MACHINE),
    dtype: str | None = typer.Option(
        None,
        help="float32, bfloat16, float16 or int8; by itself what suits.",
        show_default=False,
        rich_help_panel=MACHINE,
    ),
) -> None:
    """Serve models over HTTP: OpenAI's /v1 routes, translation, labels, forecasts, and the explorer's page.

    It listens on this machine alone unless --host says otherwise. Ctrl-C or SIGTERM finishes the answers
    under way and ends; a second one ends at once.
    """
    serving(
        models,
        host=host,
        port=port,
        token=token,
        limits={"queue": queue, "seconds": seconds},
        slots=slots,
        opening={"device": device, "dtype": dtype, "threads": threads},
        ready=_tell,
    )


def serving(
    models: Sequence[str],
    *,
    port: int,
    host: str = "127.0.0.1",
    token: str | None = None,
    limits: Mapping[str, Any] | None = None,
    slots: int = 32,
    opening: Mapping[str, Any],
    ready: Callable[[str, list[str]], None],
    fits: Callable[[Mapping[str, Any]], None] = lambda bundles: None,
) -> None:
    """Answer until told to end; `ready` is called with the address and the models' names when it listens.

    fits: is given the models by name before that, and may refuse them.
    opening: where and in which precision the models run, as `source.opened` takes it.
    """
    with _needed():
        from glassformer.server.run import listen, run
        from glassformer.server.security import Address

    Address(host=host, port=port, token=token)  # what is wrong is told before torch and the models are read
    sock = listen(host, port)
    with sock:
        with _needed():
            from glassformer.server.app import create_app
            from glassformer.server.limits import Limits
            from glassformer.server.models import load_models
        places = [str(located(model)) for model in models]
        bundles, runs = load_models(places, lambda model: source.opened(model, **opening))
        fits(bundles)
        address = Address(host=host, port=sock.getsockname()[1], token=token)
        app = create_app(bundles, runs=runs, address=address, limits=Limits(**(limits or {})), slots=slots)
        run(app, sock, on_ready=lambda: ready(address.url, list(bundles)))


@contextmanager
def _needed() -> Iterator[None]:
    """Name the extra where a library is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "glassformer":
            raise
        raise GlassformerError(f"a server needs '{error.name}', which is not installed: {EXTRA}") from None


def _tell(url: str, models: list[str]) -> None:
    typer.echo(f"serving {', '.join(models)}")
    typer.echo(f"  page      {url}/")
    typer.echo(f"  OpenAI    {url}/v1")
    typer.echo(f"  all of it {url}/docs")
