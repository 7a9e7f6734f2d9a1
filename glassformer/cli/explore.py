"""`glassformer explore [MODEL...]`: a model's inside in the browser, or one trace written into a page."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from glassformer.cli import source
from glassformer.cli.language import spelt_by
from glassformer.cli.serve import serving
from glassformer.cli.taken import say
from glassformer.cli.target import Overwrite, check_target
from glassformer.errors import GlassformerError
from glassformer.explorer.page import files
from glassformer.pretrained import located, names

PORT = 8017


def explore(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model folders, run folders to see how they learnt, or models that come along: pocket.",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="What the model reads first.")] = None,
    to: Annotated[
        str | None, typer.Option(help="The language to write, where the model knows several.")
    ] = None,
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
    overwrite: Overwrite = False,
    dtype: Annotated[
        str | None, typer.Option(help="The precision to compute in: float32, bfloat16 or float16.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """See a whole Transformer at work in the browser.

    Without MODEL it opens those that come with the package, a translator first. The page is served to this
    machine only; nothing is fetched from anywhere.
    """
    files()  # what is missing is told before a model is read
    named = models or names()
    if not named:
        raise GlassformerError("no models came with this installation; give the folder of one")
    opening = {"device": device, "dtype": dtype, "threads": None}
    if export is not None:
        if len(models or ()) > 1:
            raise GlassformerError("one page holds one trace; give one model with --export")
        check_target(export, "--export", overwrite=overwrite, read=[image])
        _export(named[0], text, to, image, export, opening)
        return
    if image is not None:
        raise GlassformerError("--image goes with --export; in the page, choose or drop a picture")

    words = {"in": text, "to": to}

    def ready(url: str, names: list[str]) -> None:
        asked = "&".join(f"{name}={quote(word)}" for name, word in words.items() if word is not None)
        where = f"{url}/" + (f"#/{names[0]}/model?{asked}" if asked else "")
        typer.echo(f"the explorer is at {where}   (Ctrl-C ends it)")
        sys.stdout.flush()
        if browser:
            import webbrowser

            webbrowser.open(where)

    def fits(bundles: Mapping[str, Any]) -> None:
        from glassformer.interpret.catalog import describe_model

        for name, bundle in bundles.items():
            describe_model(bundle, name)  # one with nothing to show is told so now, not by an empty page
        if to is not None:
            words["to"] = _language(next(iter(bundles.values())), to)

    serving(named, port=port, opening=opening, ready=ready, fits=fits)


def _export(
    model: str,
    text: str | None,
    to: str | None,
    image: Path | None,
    out: Path,
    opening: Mapping[str, Any],
) -> None:
    from base64 import b64encode

    from glassformer.explorer.static_export import export_page
    from glassformer.interpret.examples import example_input
    from glassformer.interpret.inputs import emoji_note, split_sentences
    from glassformer.interpret.outline import model_kind
    from glassformer.interpret.schema import TraceInput
    from glassformer.pretrained.run_folder import result_of
    from glassformer.weights.replacing import replacing

    given: dict[str, Any] = {} if text is None else {"text": text}
    if image is not None:
        given["image"] = b64encode(image.read_bytes()).decode()
    bundle = source.opened(str(result_of(located(model))), **opening)
    wants, asked = (
        ("--image" if model_kind(bundle) == "image" else "--text"),
        "--image" if image else "--text",
    )
    if given and wants != asked:
        raise GlassformerError(f"this model does not read what {asked} gives; use {wants}")
    if to is not None:
        to = _language(bundle, to)
    if text is not None or to is not None:
        example = example_input(bundle)
        given = {"text": example.text if text is None else text, "to": to or example.to}
        given["text"], *others = split_sentences(bundle, given["text"] or "", given["to"])
        if others:
            say(f"note: the text is read in {len(others) + 1} parts, one by one; the page holds the first")
        if (why := emoji_note(bundle, given["text"], given["to"])) is not None:
            say(f"note: {why}")
    written = export_page(bundle, TraceInput(**given) if given else None, name=Path(model).resolve().name)
    page = written.encode()
    with replacing(out) as file:
        file.write(page)
    typer.echo(f"{out}: one trace, {len(page) / 2**20:.1f} MB; open it in any browser")


def _language(bundle: Any, to: str) -> str:
    """A language as the model spells it; a sentence where it cannot be told this one."""
    from glassformer.interpret.outline import model_kind

    if model_kind(bundle) != "translate":
        raise GlassformerError("--to is for models that translate; leave it out for this one")
    return spelt_by(bundle, to)
