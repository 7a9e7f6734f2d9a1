"""glassformer explore: show a model in the browser, or export a trace as a page."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import check_output_file, check_output_folder
from glassformer.cli.options import Device, Dtype, Overwrite, Port, To, resolve_language
from glassformer.cli.serve import ServeOptions, run_server
from glassformer.errors import ConflictError, MissingValueError, UnsupportedError
from glassformer.explorer import page_files
from glassformer.explorer.sources import is_current
from glassformer.pretrained import NoModelYetError, model_folder, names, resolve_name

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
    text: Annotated[str | None, typer.Option(help="Initial input text, or question about the image.")] = None,
    to: To = None,
    image: Annotated[
        Path | None, typer.Option(help="Input image (only with --export).", exists=True, dir_okay=False)
    ] = None,
    port: Port = 8017,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    export: Annotated[
        Path | None, typer.Option(help="Write one trace as a self-contained HTML page instead.")
    ] = None,
    site: Annotated[
        Path | None, typer.Option(help="Write a static site: a page for each story of the models.")
    ] = None,
    overwrite: Overwrite = False,
    dtype: Dtype = None,
    device: Device = "auto",
) -> None:
    """Explore a model in the browser.

    The page is served on localhost only, and nothing is downloaded.
    """
    if site is not None:
        for name, value in {"text": text, "to": to, "image": image, "export": export}.items():
            if value is not None:
                reason = "a site shows the stories of its models, and their examples"
                raise ConflictError(names=(name, "site"), reason=reason)
    page_files()  # fails if the page is not built, before a model is loaded
    if not is_current():
        message("note: web/ has changed since the page was built; run 'make page'")
    options = ServeOptions(port=port, device=device, dtype=dtype, log_level="error")
    chosen = models_with_weights(models or names())
    if not chosen:
        raise MissingValueError(
            name="MODEL", needed_for="because no models are shipped with this installation"
        )
    if export is not None:
        from glassformer.server.models import unique_name

        if len(chosen) > 1 and models:
            raise ConflictError(names=("MODEL", "export"), reason="a page contains one trace of one model")
        check_output_file(export, overwrite=overwrite, inputs=[image])
        _export_page(
            options.load(str(model_folder(resolve_name(chosen[0]))), mmap=False),
            unique_name(resolve_name(chosen[0]), {}),
            text,
            to,
            image,
            export,
        )
        return
    if site is not None:
        _write_site(options, chosen, site, overwrite=overwrite)
        return
    if image is not None:
        raise MissingValueError(name="export", needed_for="with --image; in the browser, drop an image")
    query = {"in": text, "to": to}

    def check(bundles: Mapping[str, Bundle]) -> None:
        from glassformer.interpret.catalog import describe_model
        from glassformer.interpret.views import view_of

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
        first = next(iter(bundles.values()))
        if to is not None:
            query["to"] = _target_language(first, to)
        if text is not None and not problems and "question" in view_of(first).needs:
            query["question"] = query.pop("in")

    def on_ready(url: str, model_names: list[str]) -> None:
        parameters = "&".join(f"{key}={quote(value)}" for key, value in query.items() if value is not None)
        page = f"{url}/" + (f"#/{model_names[0]}/model?{parameters}" if parameters else "")
        typer.echo(f"explorer running at {page} (Ctrl-C to stop)")
        sys.stdout.flush()
        if browser:
            import webbrowser

            webbrowser.open(page)

    run_server(chosen, options, on_ready=on_ready, check=check)


def models_with_weights(models: Sequence[str]) -> list[str]:
    """The models that can be shown: without runs that have no model yet, unless there is nothing else."""
    ready: list[str] = []
    problems: list[NoModelYetError] = []
    for model in models:
        try:
            model_folder(resolve_name(model))
            ready.append(model)
        except NoModelYetError as error:
            problems.append(error)
    if problems and not ready:
        raise problems[0]
    for problem in problems:
        message(f"note: {problem}; the page leaves it out")
    return ready


def _write_site(options: ServeOptions, chosen: list[str], folder: Path, *, overwrite: bool) -> None:
    from glassformer.explorer.site import check_site_folder, write_site
    from glassformer.server.models import unique_name

    check_site_folder(folder)
    check_output_folder(folder, overwrite=overwrite)
    bundles: dict[str, Bundle] = {}
    for model in chosen:
        path = resolve_name(model)
        bundles[unique_name(path, bundles)] = options.load(str(model_folder(path)), mmap=False)
    files = write_site(folder, bundles, log=typer.echo)
    size = sum(file.stat().st_size for file in files) / 1e6
    typer.echo(
        f"wrote {folder}, {size:.1f} MB; open {folder / 'index.html'}, or copy the folder to a web server"
    )


def _export_page(
    bundle: Bundle, name: str, text: str | None, to: str | None, image: Path | None, out: Path
) -> None:
    from glassformer.explorer import export_page
    from glassformer.interpret.examples import example_input
    from glassformer.interpret.schema import TraceInput
    from glassformer.interpret.views import view_of
    from glassformer.weights.atomic_write import write_file

    view, input = view_of(bundle), None
    field = next((name for name in ("text", "question") if name in view.needs), None)
    if (image is not None and "image" not in view.needs) or (text is not None and field is None):
        raise UnsupportedError(subject=f"the model {name!r}", feature="images" if text is None else "text")
    if any(option is not None for option in (text, to, image)):
        example = example_input(bundle)
        values: dict[str, Any] = {need: getattr(example, need) for need in (*view.needs, "to")}
        if image is not None:
            values["image"] = b64encode(image.read_bytes()).decode()
        if to is not None:
            values["to"] = _target_language(bundle, to)
        if field is not None:
            parts = view.split((values[field] if text is None else text) or "", values["to"])
            if len(parts) > 1:
                message(f"note: the text is split into {len(parts)} parts; the page shows the first")
            values[field] = parts[0]
        input = TraceInput(**values)
    page = export_page(
        bundle,
        input,
        name=name,
        log=lambda text: message(f"note: {text}"),
    ).encode()
    write_file(out, page)
    typer.echo(f"wrote {out}, {len(page) / 2**20:.1f} MB; open it in any browser")


def _target_language(bundle: Bundle, to: str) -> str:
    from glassformer.interpret.views import view_of

    if view_of(bundle).languages() is None:
        raise UnsupportedError(subject="the model", feature="target languages (--to)")
    return resolve_language(bundle, to)
