"""glassformer export MODEL --to FORMAT --out FOLDER: a model for another program's runtime."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from glassformer.cli.screen import bytes_text, console, print_json
from glassformer.cli.source import bundle_of


class Format(StrEnum):
    ctranslate2 = "ctranslate2"


def export(
    model: str = typer.Argument(..., metavar="MODEL", help="A model folder."),
    to: Format = typer.Option(..., help="Whose format to write."),
    out: Path = typer.Option(..., help="The folder to write, new or empty."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Write a model that writes text for another program to run.

    ctranslate2: encoder-decoders and language models, in float32, with the tokenizer's files beside; its
    runtime reads tokens as our tokenizer spells them. How to write
    (beams, lengths) is told to that runtime at each call. Needs pip install 'glassformer[export]'.
    """
    from glassformer.export.ctranslate2 import export_ctranslate2

    exported = export_ctranslate2(bundle_of(model), out)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    if as_json:
        print_json({"folder": str(out), "to": to.value, "files": files, "notes": list(exported.notes)})
        return
    screen = console()
    screen.print(f"[bold]{out}[/]  for {to.value}", soft_wrap=True)
    for name, size in files.items():
        screen.print(f"  {name:<32} {bytes_text(size):>10}")
    for note in exported.notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False)
