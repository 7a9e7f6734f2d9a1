"""glassformer fill MODEL TEXT...: guess the words at [MASK]."""

from __future__ import annotations

from dataclasses import asdict

import typer

from glassformer.cli.reading import Reading, printed, reading_verb


@reading_verb
def fill(
    asked: Reading,
    texts: list[str] | None = typer.Argument(
        None, metavar="TEXT", help="Texts with [MASK] where a word is hidden.", show_default=False
    ),
    top: int = typer.Option(5, min=1, help="How many guesses --json tells for each mask."),
) -> None:
    """Put the likeliest word at every [MASK] of each text, one a line; an empty line stays empty.

    --json tells the guesses for each mask with their probabilities.
    """
    inputs = asked.inputs(texts)
    bundle = asked.bundle_for(texts)
    from glassformer.tasks.fill import fill as filled

    found = filled(
        bundle,
        inputs.lines,
        top=top if asked.as_json else 1,
        ahead=inputs.ahead,
        watch=inputs.watch,
        **asked.budget(),
    )
    printed(inputs, found, lambda one: one.text, asdict if asked.as_json else None)
