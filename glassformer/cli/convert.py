"""glassformer convert IN OUT: convert a model to another layout or dtype."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from glassformer.cli.console import print_files, print_json
from glassformer.cli.model_argument import load_or_build
from glassformer.cli.options import Json, ModelOrTiny, Overwrite
from glassformer.cli.outputs import check_output_folder
from glassformer.errors import FileProblemError


class Layout(StrEnum):
    hf = "hf"
    glassformer = "glassformer"


class StorageDtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


def convert(
    model: ModelOrTiny,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder.")],
    to: Annotated[
        Layout | None, typer.Option(help="Folder layout (default: hf if the family has one).")
    ] = None,
    dtype: Annotated[
        StorageDtype | None,
        typer.Option(help="Storage dtype (default: unchanged; int8 becomes float32)."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Convert a model to another layout or dtype.

    Weights are only cast, so every dtype can be written on every machine.
    int8 needs the glassformer layout and is loaded as float32.
    """
    if out.is_dir() and Path(model).is_dir() and Path(model).samefile(out):
        raise FileProblemError(path=out, problem="is also the input folder")
    check_output_folder(out, overwrite=overwrite)
    from glassformer.bundle import save
    from glassformer.core.precision import parse_dtype

    bundle = load_or_build(model, dtype="stored")
    if dtype is not None and dtype is not StorageDtype.int8:
        bundle.model.to(parse_dtype(dtype.value))
    quantized: Literal["int8"] | None = "int8" if dtype is StorageDtype.int8 else None
    is_new = not out.exists()
    try:
        save(bundle, out, layout=to.value if to else None, dtype=quantized)
    except BaseException:
        if is_new:  # leave no partial folder
            shutil.rmtree(out, ignore_errors=True)
        raise
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in bundle.model.parameters()})
    dtypes = [quantized] if quantized else dtypes
    layout = "glassformer" if "spec.json" in files else "hf"
    if as_json:
        print_json({"folder": str(out), "layout": layout, "dtype": dtypes, "files": files})
    else:
        print_files(f"[bold]{out}[/]  {layout} layout, {' and '.join(dtypes)}", files)
