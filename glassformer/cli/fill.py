"""glassformer fill MODEL TEXT...: guess the words at [MASK]."""

from __future__ import annotations

from dataclasses import asdict

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
    ahead_of,
    inputs_of,
    opened,
    printed,
)


def fill(
    model: Model,
    texts: list[str] | None = typer.Argument(
        None, metavar="[TEXT...]", help="Texts with [MASK] where a word is hidden.", show_default=False
    ),
    file: File = None,
    top: int = typer.Option(5, min=1, help="How many guesses --json tells for each mask."),
    as_json: AsJson = False,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Put the likeliest word at every [MASK] of each text, one a line; an empty line stays empty.

    --json tells the guesses for each mask with their probabilities.
    """
    what = inputs_of(texts, file)
    bundle = opened(model, device=device, dtype=dtype, threads=threads)
    from glassformer.verbs.fill import fill as filled

    found = filled(
        bundle, what.lines, top=top if as_json else 1, batch_tokens=batch_tokens, ahead=ahead_of(what)
    )
    printed(what, found, lambda one: one.text, asdict if as_json else None)
