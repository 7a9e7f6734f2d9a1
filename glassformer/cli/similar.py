"""glassformer similar MODEL --in FILE TEXT...: which of many texts is nearest in meaning."""

from __future__ import annotations

from pathlib import Path

import typer

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
    lines_of,
    opened,
    printed,
    scored,
)


def similar(
    model: Model,
    texts: list[str] | None = typer.Argument(
        None,
        metavar="[TEXT...]",
        help="What to look for; picture files for a model of pictures.",
        show_default=False,
    ),
    candidates: Path = typer.Option(
        ..., "--in", help="The file to look in, one text (or picture file) a line."
    ),
    file: File = None,
    top: int = typer.Option(1, min=1, help="How many of the nearest to tell."),
    truncate: Truncate = False,
    as_json: AsJson = False,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Find the nearest lines of a file for each text: the line, a tab, and the cosine of their vectors."""
    what = inputs_of(texts, file)
    among = lines_of(candidates, "texts to look in")
    bundle = opened(model, device=device, dtype=dtype, threads=threads)
    from glassformer.verbs.embed import Match
    from glassformer.verbs.embed import similar as nearest

    found = nearest(
        bundle,
        what.lines,
        among,
        top=top,
        truncate=truncate,
        batch_tokens=batch_tokens,
        ahead=ahead_of(what),
    )

    def full(one: list[Match]) -> dict[str, object]:
        return {"nearest": [{"line": m.number + 1, "text": m.text, "score": m.score} for m in one]}

    printed(what, found, lambda one: scored((m.text, m.score) for m in one), full if as_json else None)
