"""`glassformer explore [MODEL...]`: a model's inside in the browser, or one trace written into a page."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any
from urllib.parse import quote

import typer

from glassformer.cli import source
from glassformer.cli.serve import serving
from glassformer.core.errors import GlassformerError
from glassformer.explorer.page import files

PORT = 8017


def explore(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Model folders, or run folders to see how they learnt."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="What the model reads first.")] = None,
    image: Annotated[
        Path | None, typer.Option(help="A picture for it to read.", exists=True, dir_okay=False)
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where the page is served; 0: any that is free.")
    ] = PORT,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open the browser.")
    ] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write one trace as a page that works from disk, and serve nothing.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The precision to compute in: float32, bfloat16 or float16.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """See a whole Transformer at work in the browser.

    Without MODEL a small translator of dates is trained on the spot, once, and kept. The page is served to
    this machine only; nothing is fetched from anywhere.
    """
    files()  # what is missing is told before a model is trained or read
    named = models or [str(_dates())]
    opening = {"device": device, "dtype": dtype, "threads": None}
    if export is not None:
        if len(named) > 1:
            raise GlassformerError("one page holds one trace; give one model with --export")
        _export(named[0], text, image, export, opening)
        return
    if image is not None:
        raise GlassformerError("--image goes with --export; in the page, choose or drop a picture")

    def ready(url: str, names: list[str]) -> None:
        where = f"{url}/" + (f"#/{names[0]}/model?in={quote(text)}" if text is not None else "")
        typer.echo(f"the explorer is at {where}   (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            import webbrowser

            webbrowser.open(where)

    serving(named, port=port, opening=opening, ready=ready)


def _export(model: str, text: str | None, image: Path | None, out: Path, opening: Mapping[str, Any]) -> None:
    from base64 import b64encode

    from glassformer.explorer.frozen import single_page
    from glassformer.trace.outline import kind_of
    from glassformer.trace.runs import result_of

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise GlassformerError(f"'{out}' cannot be written; give a file in a folder that is there")
    given: dict[str, Any] = {} if text is None else {"text": text}
    if image is not None:
        given["image"] = b64encode(image.read_bytes()).decode()
    bundle = source.opened(str(result_of(model)), **opening)
    wants, asked = ("--image" if kind_of(bundle) == "image" else "--text"), "--image" if image else "--text"
    if given and wants != asked:
        raise GlassformerError(f"this model does not read what {asked} gives; use {wants}")
    written = single_page(bundle, given or None, name=Path(model).resolve().name)
    out.write_text(written, "utf-8")
    typer.echo(f"{out}: one trace, {len(written.encode()) / 2**20:.1f} MB; open it in any browser")


def _dates() -> Path:
    """The demo's translator of dates, from where it was kept, or trained now."""
    from glassformer.api import save
    from glassformer.cli import dates
    from glassformer.cli.demo import STEPS, progress

    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glassformer" / "dates"
    if (kept / "checksums.json").is_file():
        return kept
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError:
        kept = Path(mkdtemp(prefix="glassformer-"))  # trained for this time only
    import torch
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print("no model was named, so a small translator of dates is trained (20 seconds, once)")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices this small gain nothing from more
    bundle = dates.fresh(0)
    with progress(console, STEPS) as report:
        dates.train(bundle, dates.split(seed=0)[0], steps=STEPS, report=report)
    torch.set_num_threads(threads)
    return save(bundle, kept)
