"""glassformer export MODEL --to FORMAT --out FOLDER: a model for another program's runtime."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from glassformer.cli.screen import bytes_text, console, print_json
from glassformer.cli.source import MODEL_HELP, bundle_of
from glassformer.errors import GlassformerError


class Format(StrEnum):
    onnx = "onnx"
    ctranslate2 = "ctranslate2"


class Stored(StrEnum):
    float32 = "float32"
    float16 = "float16"
    int8 = "int8"


def export(
    model: str = typer.Argument(..., metavar="MODEL", help=MODEL_HELP),
    to: Format = typer.Option(..., help="Whose format to write."),
    out: Path = typer.Option(..., help="The folder to write, new or empty."),
    dtype: Stored = typer.Option(Stored.float32, help="What the weights are stored in (ctranslate2)."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Write a model for another program to run, with the tokenizer's files beside.

    onnx: every family, in float32. Batches and lengths of any size; padding, and the keys and values so far
    of a model that writes, are inputs. export.json in the folder lists what each file takes and gives.

    ctranslate2: encoder-decoders, language models and encoders of text. Its runtime reads tokens as our
    tokenizer spells them; how to write (beams, lengths) is told to it at each call.

    Needs pip install 'glassformer\\[export]'. `glassformer verify MODEL --exported FOLDER` proves the result.
    """
    if to is Format.onnx:
        if dtype is not Stored.float32:
            raise GlassformerError(f"ONNX is written in float32, not {dtype.value}; leave --dtype out")
        from glassformer.export.onnx import export_onnx

        exported = export_onnx(bundle_of(model), out)
    else:
        from glassformer.export.ctranslate2 import export_ctranslate2

        exported = export_ctranslate2(bundle_of(model), out, dtype.value)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    if as_json:
        print_json(
            {
                "folder": str(out),
                "to": to.value,
                "dtype": dtype.value,
                "files": files,
                "notes": list(exported.notes),
            }
        )
        return
    screen = console()
    screen.print(f"[bold]{out}[/]  for {to.value}, {dtype.value}", soft_wrap=True)
    for name, size in files.items():
        screen.print(f"  {name:<32} {bytes_text(size):>10}")
    for note in exported.notes:
        screen.print(f"note: {note}", soft_wrap=True, markup=False)
