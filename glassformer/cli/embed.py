"""glassformer embed MODEL TEXT...: a vector for each text or picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from glassformer.cli.reading import Inputs, Reading, Truncate, printed, reading_verb
from glassformer.cli.taken import say
from glassformer.cli.target import Overwrite, check_target
from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from torch import Tensor


@reading_verb
def embed(
    asked: Reading,
    texts: list[str] | None = typer.Argument(
        None, metavar="TEXT", help="Texts, or picture files for a model of pictures.", show_default=False
    ),
    out: Path | None = typer.Option(
        None, help="Write the vectors to this .npy file instead: (N, D), float32.", show_default=False
    ),
    overwrite: Overwrite = False,
    prompt: str | None = typer.Option(
        None, help="The name of a prompt of the model's folder, as query.", show_default=False
    ),
    truncate: Truncate = False,
) -> None:
    """Give a vector for each text, one a line, or each picture file: its numbers, spaces between.

    A sentence encoder pools and scales as its folder says; any other encoder gives the mean over the tokens.
    An empty line stays empty; with --out its row is NaN.
    """
    inputs = asked.inputs(texts)
    if out is not None and inputs.total is None:
        raise GlassformerError("--out needs to know how many texts there are; give them with --file")
    if out is not None:
        if out.suffix != ".npy":
            raise GlassformerError(f"'{out}' cannot be written; name a .npy file with --out")
        check_target(out, "--out", overwrite=overwrite, read=[asked.file])
    bundle = asked.bundle_for(texts)
    from glassformer.tasks.embed import vectors, width_of

    found = vectors(
        bundle,
        inputs.lines,
        truncate=truncate,
        prompt=prompt,
        ahead=inputs.ahead,
        watch=inputs.watch,
        **asked.budget(),
    )
    if out is not None:
        _saved(out, inputs, found, width_of(bundle))
        return
    printed(
        inputs,
        found,
        lambda vector: " ".join(f"{number:.9g}" for number in _numbers(vector)),
        (lambda vector: {"vector": _numbers(vector)}) if asked.as_json else None,
    )


def _numbers(vector: Tensor) -> list[float]:
    """The numbers of a vector (D,); none of a line that was not asked."""
    found: list[float] = vector.tolist()
    return [] if found[0] != found[0] else found


def _without(empty: int, refused: int) -> str:
    """How many lines have no vector, and why."""
    lines = "1 line is empty" if empty == 1 else f"{empty:,} lines are empty"
    if not refused:
        return lines
    if empty:
        return f"{lines} and {refused:,} could not be answered"
    return f"{refused:,} {'line' if refused == 1 else 'lines'} could not be answered"


def _saved(out: Path, inputs: Inputs, found: Iterator[Tensor], width: int) -> None:
    """The vectors as one array, mapped from the disk while it is written: never whole in memory.

    A text that cannot be read has no numbers, and an empty one neither: all are NaN.
    """
    import numpy as np

    part = out.with_name(f"{out.name}.part")
    try:
        rows = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=(inputs.total or 0, width))
        empty = refused = 0
        for n, vector in enumerate(found):
            rows[n] = vector.numpy()
            if inputs.refused() is not None:
                refused += 1
            elif not _numbers(vector):
                empty += 1
        rows.flush()
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    say(f"wrote {inputs.total or 0:,} vectors of {width} numbers to {out}")
    if empty or refused:
        say(f"note: {_without(empty, refused)}; such a row is NaN")
    inputs.what.end()
