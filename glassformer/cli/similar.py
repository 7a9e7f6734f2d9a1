"""glassformer similar MODEL --in FILE TEXT...: which of many texts is nearest in meaning."""

from __future__ import annotations

from pathlib import Path

import typer

from glassformer.cli.reading import Reading, Truncate, lines_of, printed, reading_verb, scored


@reading_verb
def similar(
    asked: Reading,
    texts: list[str] | None = typer.Argument(
        None,
        metavar="TEXT",
        help="What to look for; picture files for a model of pictures.",
        show_default=False,
    ),
    candidates: Path = typer.Option(
        ..., "--in", help="The file to look in, one text (or picture file) a line."
    ),
    top: int = typer.Option(1, min=1, help="How many of the nearest to tell."),
    truncate: Truncate = False,
) -> None:
    """Find the nearest lines of a file for each text: the line, a tab, and the cosine of their vectors."""
    inputs = asked.inputs(texts)
    among = lines_of(candidates, "texts to look in")
    bundle = asked.bundle()
    from glassformer.verbs.embed import Match
    from glassformer.verbs.embed import similar as nearest

    found = nearest(
        bundle,
        inputs.lines,
        among,
        top=top,
        truncate=truncate,
        ahead=inputs.ahead,
        watch=inputs.watch,
        **asked.budget(),
    )

    def full(one: list[Match]) -> dict[str, object]:
        return {"nearest": [{"line": m.number + 1, "text": m.text, "score": m.score} for m in one]}

    printed(
        inputs, found, lambda one: scored((m.text, m.score) for m in one), full if asked.as_json else None
    )
