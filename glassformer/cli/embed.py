"""glassformer embed MODEL TEXT...: a vector for each text or picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from glassformer.cli.given import Given
from glassformer.cli.reading import (
    BATCH_TOKENS,
    AsJson,
    BatchTokens,
    Device,
    Dtype,
    File,
    Model,
    Threads,
    Truncate,
    ahead_of,
    inputs_of,
    opened,
    printed,
)
from glassformer.core.errors import GlassformerError

if TYPE_CHECKING:
    from torch import Tensor


def embed(
    model: Model,
    texts: list[str] | None = typer.Argument(
        None, metavar="[TEXT...]", help="Texts, or picture files for a model of pictures.", show_default=False
    ),
    file: File = None,
    out: Path | None = typer.Option(
        None, help="Write the vectors to this .npy file instead: (N, D), float32.", show_default=False
    ),
    prompt: str | None = typer.Option(
        None, help="The name of a prompt of the model's folder, as query.", show_default=False
    ),
    truncate: Truncate = False,
    as_json: AsJson = False,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Give a vector for each text, one a line, or each picture file: its numbers, spaces between.

    A sentence encoder pools and scales as its folder says; any other encoder gives the mean over the tokens.
    """
    what = inputs_of(texts, file)
    if out is not None and what.total is None:
        raise GlassformerError("--out needs to know how many texts there are; give them with --file")
    bundle = opened(model, device=device, dtype=dtype, threads=threads)
    from glassformer.verbs.embed import vectors, width_of

    found = vectors(
        bundle,
        what.lines,
        truncate=truncate,
        prompt=prompt,
        batch_tokens=batch_tokens,
        ahead=ahead_of(what),
    )
    if out is not None:
        _saved(out, what, found, width_of(bundle))
        return
    printed(
        what,
        found,
        lambda vector: " ".join(f"{number:.9g}" for number in vector.tolist()),
        (lambda vector: {"vector": vector.tolist()}) if as_json else None,
    )


def _saved(out: Path, what: Given, found: Iterator[Tensor], width: int) -> None:
    """The vectors as one array, mapped from the disk while it is written: never whole in memory."""
    import numpy as np

    if out.suffix != ".npy" or not out.parent.is_dir():
        raise GlassformerError(f"'{out}' cannot be written; name a .npy file in a folder that is there")
    part = out.with_name(f"{out.name}.part")
    try:
        rows = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=(what.total or 0, width))
        for n, vector in enumerate(found):
            rows[n] = vector.numpy()
        rows.flush()
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    typer.echo(f"wrote {what.total or 0:,} vectors of {width} numbers to {out}", err=True)
