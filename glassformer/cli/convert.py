"""glassformer convert IN OUT: load, cast if asked, and save."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Literal

import typer

from glassformer.cli.screen import bytes_text, console, print_json
from glassformer.cli.source import MODEL_HELP, bundle_of
from glassformer.errors import GlassformerError


class To(StrEnum):
    hf = "hf"
    glassformer = "glassformer"


class Dtype(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    int8 = "int8"


def convert(
    source: str = typer.Argument(..., metavar="IN", help=MODEL_HELP),
    target: Path = typer.Argument(..., metavar="OUT", help="The folder to write."),
    to: To | None = typer.Option(
        None, help="The published layout (hf) or ours; by default hf where the family has one."
    ),
    dtype: Dtype | None = typer.Option(
        None,
        help="Cast the numbers, or round matrices to int8; by default they stay as stored, but for int8, "
        "which becomes float32.",
    ),
    overwrite: bool = typer.Option(False, "--overwrite", help="Write into a folder that holds files."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON document."),
) -> None:
    """Write a model folder anew, in the published layout or in ours, in the precision you choose.

    Numbers are only cast, never computed with, so any format can be written on any machine. int8 is for small
    folders of ours: it is read back as float32, and a folder in int8 is written as float32 where no --dtype
    says otherwise.
    """
    _check(source, target, overwrite)
    import glassformer
    from glassformer.core.precision import parse_dtype

    bundle = bundle_of(source, dtype="stored")
    if dtype is not None and dtype is not Dtype.int8:
        bundle.model.to(parse_dtype(dtype.value))
    stored: Literal["int8"] | None = "int8" if dtype is Dtype.int8 else None
    with _whole_or_none(target):
        glassformer.save(bundle, target, layout=to.value if to else None, dtype=stored)
    files = {path.name: path.stat().st_size for path in sorted(target.iterdir()) if path.is_file()}
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in bundle.model.parameters()})
    dtypes = [stored] if stored else dtypes
    layout = "glassformer" if "spec.json" in files else "hf"
    if as_json:
        print_json({"folder": str(target), "layout": layout, "dtype": dtypes, "files": files})
        return
    out = console()
    out.print(f"[bold]{target}[/]  {layout} layout, {' and '.join(dtypes)}", soft_wrap=True)
    for name, size in files.items():
        out.print(f"  {name:<32} {bytes_text(size):>10}")


@contextmanager
def _whole_or_none(target: Path) -> Iterator[None]:
    """A folder that was not there before is taken away again where it cannot be written whole."""
    fresh = not target.exists()
    try:
        yield
    except BaseException:
        if fresh:
            shutil.rmtree(target, ignore_errors=True)
        raise


def _check(source: str, target: Path, overwrite: bool) -> None:
    """Refuse to write where something would be lost."""
    if target.exists() and not target.is_dir():
        raise GlassformerError(f"'{target}' is a file; give a folder to write")
    if not target.is_dir():
        return
    if Path(source).is_dir() and Path(source).samefile(target):
        raise GlassformerError(f"'{target}' is the folder being read; write into another one")
    if any(target.iterdir()) and not overwrite:
        raise GlassformerError(f"'{target}' holds files already; add --overwrite, or give another folder")
