"""What the verbs that read have in common: their options, the model they ask for, a line for every input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from glassformer.cli.given import Given, given
from glassformer.cli.source import bundle_of, checked_device
from glassformer.cli.taken import taking
from glassformer.core.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.api import Bundle

BATCH_TOKENS = 16_384
AHEAD = 1024  # lines looked at together, for batches of one length; at a terminal each is answered at once
Out = TypeVar("Out")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder.", show_default=False)]
File = Annotated[Path | None, typer.Option("--file", help="Read this file, one a line.", show_default=False)]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Cut what is longer than the model reads, instead of refusing it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document a line.")]
BatchTokens = Annotated[int, typer.Option(min=1, help="The most tokens that are read together.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16 or float16; by itself what suits.", show_default=False)
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads; by itself as many as cores.", show_default=False)
]


def opened(model: str, *, device: str, dtype: str | None, threads: int | None) -> Bundle:
    """The model, ready on its device."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return bundle_of(model, dtype=dtype, device=checked_device(device))


def ahead_of(what: Given) -> int:
    """How many lines are looked at together."""
    return 1 if what.kind == "terminal" else AHEAD


def inputs_of(texts: Iterable[str] | None, file: Path | None) -> Given:
    """What is to be read: arguments, a file, or standard input."""
    return given(list(texts or ()), file)


def printed(
    what: Given, results: Iterator[Out], plain: Callable[[Out], str], full: Callable[[Out], Any] | None
) -> None:
    """A line for each result as it comes, as JSON where `full` is given; of a file, how far it has come."""
    with taking(None, resume=False, overwrite=False, total=what.total, telling=what.kind == "file") as taker:
        for one in results:
            if full is None:
                taker.take(" ".join(plain(one).splitlines()))
            else:
                taker.take(json.dumps(full(one), ensure_ascii=False))


def scored(pairs: Iterable[tuple[str, float]]) -> str:
    """Words and their scores in one line, tabs between.

    >>> scored([("good", 0.75), ("bad", 0.25)])
    'good\\t0.7500\\tbad\\t0.2500'
    """
    return "\t".join(f"{' '.join(word.split())}\t{score:.4f}" for word, score in pairs)


def lines_of(file: Path, what: str) -> list[str]:
    """All lines of a file that is held whole."""
    found = list(given([], file).lines)
    if not found:
        raise GlassformerError(f"'{file}' holds no {what}; give some")
    return found
