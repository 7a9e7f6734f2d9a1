"""glassformer export MODEL --to FORMAT --out FOLDER: export a model for another runtime."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli.console import message, print_files, print_json
from glassformer.cli.model_argument import load_or_build
from glassformer.cli.options import Json, ModelOrTiny
from glassformer.errors import InvalidValueError


class Format(StrEnum):
    onnx = "onnx"
    ctranslate2 = "ctranslate2"


class StorageDtype(StrEnum):
    float32 = "float32"
    float16 = "float16"
    int8 = "int8"


def export(
    model: ModelOrTiny,
    to: Annotated[Format, typer.Option(help="Output format.")],
    out: Annotated[Path, typer.Option(help="Output folder, new or empty.")],
    dtype: Annotated[
        StorageDtype, typer.Option(help="Storage dtype of the weights (ctranslate2 only).")
    ] = StorageDtype.float32,
    as_json: Json = False,
) -> None:
    """Export a model to ONNX or CTranslate2, with its tokenizer files.

    onnx: every family, in float32, with dynamic batch size and length.
    export.json in the output folder lists the inputs and outputs of each file.

    ctranslate2: encoder-decoders, language models and text encoders.

    Requires pip install 'glassformer\\[export]'. Check the result with
    `glassformer verify MODEL --exported FOLDER`.
    """
    if to is Format.onnx:
        if dtype is not StorageDtype.float32:
            raise InvalidValueError(name="dtype", value=dtype.value, expected="float32 for ONNX")
        from glassformer.export.onnx import export_onnx

        exported = export_onnx(load_or_build(model), out)
    else:
        from glassformer.export.ctranslate2 import export_ctranslate2

        exported = export_ctranslate2(load_or_build(model), out, dtype.value)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    notes = list(exported.notes)
    if as_json:
        print_json({"folder": str(out), "to": to, "dtype": dtype, "files": files, "notes": notes})
        return
    print_files(f"[bold]{out}[/]  for {to.value}, {dtype.value}", files)
    for note in notes:
        message(f"note: {note}")
