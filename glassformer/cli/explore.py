"""glassformer explore: show a model in the browser, or export a trace as a page."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import check_output_file
from glassformer.cli.options import Device, Dtype, Overwrite, Port, To, resolve_language
from glassformer.cli.serve import ServeOptions, run_server
from glassformer.errors import ConflictError, MissingValueError, UnsupportedError
from glassformer.explorer import page_files
from glassformer.pretrained import model_folder, names, resolve_name

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


def explore(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Model folders, run folders, or shipped models (default: all shipped models).",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Initial input text.")] = None,
    to: To = None,
    image: Annotated[
        Path | None, typer.Option(help="Input image (only with --export).", exists=True, dir_okay=False)
    ] = None,
    port: Port = 8017,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write one trace as a self-contained HTML page instead.")
    ] = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
    device: Device = "auto",
) -> None:
    """Explore a model in the browser.

    The page is served on localhost only, and nothing is downloaded.
    """
    page_files()  # fails if the page is not built, before a model is loaded
    options = ServeOptions(port=port, device=device, dtype=dtype, log_level="error")
    chosen = models or names()
    if not chosen:
        raise MissingValueError(
            name="MODEL", needed_for="because no models are shipped with this installation"
        )
    if export is not None:
        if len(chosen) > 1 and models:
            raise ConflictError(names=("MODEL", "export"), reason="a page contains one trace of one model")
        check_output_file(export, overwrite=overwrite, inputs=[image])
        _export_page(
            options.load(str(model_folder(resolve_name(chosen[0]))), mmap=False),
            Path(chosen[0]).resolve().name,
            text,
            to,
            image,
            export,
        )
        return
    if image is not None:
        raise MissingValueError(name="export", needed_for="with --image; in the browser, drop an image")
    query = {"in": text, "to": to}

    def check(bundles: Mapping[str, Bundle]) -> None:
        from glassformer.interpret.catalog import describe_model

        problems: list[UnsupportedError] = []
        for name, bundle in bundles.items():
            try:
                describe_model(bundle, name)  # fails if there is nothing to show
            except UnsupportedError as error:
                problems.append(error)
        if len(problems) == len(bundles):
            raise problems[0]
        for problem in problems:
            message(f"note: {problem}; the page leaves it out")
        if to is not None:
            query["to"] = _target_language(next(iter(bundles.values())), to)

    def on_ready(url: str, model_names: list[str]) -> None:
        parameters = "&".join(f"{key}={quote(value)}" for key, value in query.items() if value is not None)
        page = f"{url}/" + (f"#/{model_names[0]}/model?{parameters}" if parameters else "")
        typer.echo(f"explorer running at {page} (Ctrl-C to stop)")
        sys.stdout.flush()
        if browser:
            import webbrowser

            webbrowser.open(page)

    run_server(chosen, options, on_ready=on_ready, check=check)


def _export_page(
    bundle: Bundle, name: str, text: str | None, to: str | None, image: Path | None, out: Path
) -> None:
    from glassformer.explorer import export_page
    from glassformer.interpret.examples import example_input
    from glassformer.interpret.schema import TraceInput
    from glassformer.interpret.views import view_of
    from glassformer.weights.atomic_write import atomic_write

    reads_images, reads_texts = (one in bundle.spec.modalities for one in ("image", "text"))
    if (image is not None and not reads_images) or (text is not None and not reads_texts):
        raise UnsupportedError(subject=f"the model {name!r}", feature="images" if text is None else "text")
    inputs: dict[str, Any] = {} if image is None else {"image": b64encode(image.read_bytes()).decode()}
    if reads_images and reads_texts and (image is not None or text is not None):
        example = example_input(bundle)
        inputs = {"image": inputs.get("image", example.image), "text": text or example.text}
    elif text is not None or to is not None:
        example = example_input(bundle)
        language = example.to if to is None else _target_language(bundle, to)
        first, *others = view_of(bundle).split((example.text if text is None else text) or "", language)
        if others:
            message(f"note: the text is split into {len(others) + 1} parts; the page shows the first")
        inputs = {"text": first, "to": language}
    page = export_page(
        bundle,
        TraceInput(**inputs) if inputs else None,
        name=name,
        log=lambda text: message(f"note: {text}"),
    ).encode()
    with atomic_write(out) as file:
        file.write(page)
    typer.echo(f"wrote {out}, {len(page) / 2**20:.1f} MB; open it in any browser")


def _target_language(bundle: Bundle, to: str) -> str:
    from glassformer.tasks.generation_options import is_sequence_to_sequence

    if not is_sequence_to_sequence(bundle.spec):
        raise UnsupportedError(subject="the model", feature="target languages (--to)")
    return resolve_language(bundle, to)
